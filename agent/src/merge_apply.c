#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "attributes.h"
#include "base.h"
#include "listing.h"
#include "merge.h"
#include "staged.h"

#define NEW_FILE "file" /* in the staging directory: what is about to get its place */

static const char *number_name(uint32_t number) {
    static char name[16];
    text(name, sizeof name, "%u", number);
    return name;
}

static struct timespec time_of(const struct archive_record *record) {
    return (struct timespec){.tv_sec = (time_t)record->seconds, .tv_nsec = (long)record->nanoseconds};
}

void apply_begin(struct merge *merge) {
    int data = merge->places[0].parent;
    if (mkdirat(data, STAGED_NEW, 0700) != 0) merge_stop(STAGED_NEW);
    merge->staging = folder_open(data, STAGED_NEW);
    if (merge->staging < 0 || mkdirat(merge->staging, STAGED_LINKS, 0700) != 0) merge_stop(STAGED_NEW);
    merge->links = folder_open(merge->staging, STAGED_LINKS);
    if (merge->links < 0) merge_stop(STAGED_NEW);
}

/* Makes a directory where there is none, or something else. */
static int folder_at(int at, const char *name) {
    int fd = folder_open(at, name);
    if (fd >= 0) return fd;
    if (unlinkat(at, name, 0) != 0 && errno != ENOENT) merge_stop(name);
    if (mkdirat(at, name, 0700) != 0 || (fd = folder_open(at, name)) < 0) merge_stop(name);
    return fd;
}

/* The directory that we are in, made if the parent has it no more. */
static int here(struct merge *merge) {
    for (size_t i = 1; i < merge->depth; i++) {
        struct place *place = &merge->places[i];
        if (place->parent >= 0) continue;
        place->parent = folder_at(merge->places[i - 1].parent, place->name);
        place->settle = true;
    }
    return merge_here(merge)->parent;
}

/* What is staged gets its place, whatever is there. */
static void put(struct merge *merge, const char *name) {
    int to = here(merge);
    if (renameat(merge->staging, NEW_FILE, to, name) != 0) {
        if (errno != EISDIR && errno != EEXIST && errno != ENOTEMPTY) merge_stop(name);
        if (tree_remove(to, name) != 0 || renameat(merge->staging, NEW_FILE, to, name) != 0) merge_stop(name);
    }
    /* rename(2) does nothing where both are names of one file. */
    if (unlinkat(merge->staging, NEW_FILE, 0) != 0 && errno != ENOENT) merge_stop(name);
}

static void put_link(struct merge *merge, const struct archive_record *record, const char *name) {
    char target[ARCHIVE_TARGET_MAX + 1];
    struct timespec times[2] = {time_of(record), time_of(record)};
    memcpy(target, record->body, record->body_size);
    target[record->body_size] = 0;
    if (symlinkat(target, merge->staging, NEW_FILE) != 0) merge_stop(name);
    if (fchownat(merge->staging, NEW_FILE, record->uid, record->gid, AT_SYMLINK_NOFOLLOW) != 0) merge_stop(name);
    (void)utimensat(merge->staging, NEW_FILE, times, AT_SYMLINK_NOFOLLOW);
    put(merge, name);
}

static void settle(int fd, const struct place *place) {
    /* The owner first: a change of that takes the same away. */
    if (fchown(fd, place->uid, place->gid) != 0 || fchmod(fd, place->mode) != 0) merge_stop("owner, mode or attributes");
    attributes_trim(fd, place->body, place->body_size);
    if (!attributes_set(fd, place->body, place->body_size, true)) merge_stop("owner, mode or attributes");
    (void)futimens(fd, (struct timespec[2]){place->time, place->time});
}

static void keep_body(struct place *place, const struct archive_record *record) {
    place->body_size = record->body_size;
    place->body = malloc(record->body_size + 1);
    if (place->body == NULL) merge_stop("no memory for attributes");
    memcpy(place->body, record->body, record->body_size);
}

/* It gets the rest when its data is there: writing takes set-user-ID bits and capabilities away. */
static void begin_file(struct merge *merge, const struct archive_record *record, const char *name) {
    int fd = openat(merge->staging, NEW_FILE, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0) merge_stop(name);
    merge->file.fd = fd;
    if (ftruncate(fd, (off_t)record->size) != 0) merge_stop(name);
    merge->file_like = (struct place){
        .mode = record->mode, .uid = record->uid, .gid = record->gid, .time = time_of(record)};
    keep_body(&merge->file_like, record);
}

static void settle_top(struct merge *merge, const struct archive_record *record) {
    struct place top = {.mode = record->mode, .uid = record->uid, .gid = record->gid, .time = time_of(record)};
    keep_body(&top, record);
    settle(merge->places[0].parent, &top);
    free(top.body);
}

static void same(struct merge *merge, const struct archive_record *record, const char *name) {
    if (record->kind != ARCHIVE_FILE || record->number == 0) return;
    if (linkat(here(merge), name, merge->links, number_name(record->number), 0) != 0) merge_stop(name);
}

void apply_record(struct merge *merge, const struct archive_record *record, const char *name, enum verdict verdict) {
    if (verdict == VERDICT_SAME) {
        same(merge, record, name);
    } else if (record->kind == ARCHIVE_TOP) {
        settle_top(merge, record);
    } else if (record->kind == ARCHIVE_FILE) {
        begin_file(merge, record, name);
    } else if (record->kind == ARCHIVE_SYMLINK) {
        put_link(merge, record, name);
    } else if (record->kind == ARCHIVE_HARD) {
        if (linkat(merge->links, number_name(record->number), merge->staging, NEW_FILE, 0) != 0) merge_stop(name);
        put(merge, name);
    } else if (tree_remove(merge_here(merge)->parent, name) != 0) {
        merge_stop(name);
    }
}

void apply_enter(struct merge *merge, const struct archive_record *record, const char *name, enum verdict verdict,
                 struct place *place) {
    keep_body(place, record);
    if (record->kind == ARCHIVE_FOLDER) {
        place->parent = folder_at(here(merge), name);
        place->settle = verdict == VERDICT_TAKE;
    } else if (merge_here(merge)->parent >= 0) {
        place->parent = folder_open(merge_here(merge)->parent, name);
    }
}

void apply_data(struct merge *merge, const struct archive_record *record) {
    if (!volume_copy_to(&merge->volume, merge->file.fd, record->size, record->length)) merge_stop(merge->file.name);
}

void apply_finish(struct merge *merge) {
    struct arriving *file = &merge->file;
    if (file->fd < 0) return;
    settle(file->fd, &merge->file_like);
    free(merge->file_like.body);
    merge->file_like.body = NULL;
    if (file->number != 0 &&
        linkat(merge->staging, NEW_FILE, merge->links, number_name(file->number), 0) != 0)
        merge_stop(file->name);
    put(merge, file->name);
}

void apply_leave(struct place *place) {
    if (place->settle && place->parent >= 0) settle(place->parent, place);
}

void apply_end(struct merge *merge) {
    int data = merge->places[0].parent;
    close_fd(&merge->links);
    close_fd(&merge->staging);
    if (tree_remove(data, STAGED_NEW) != 0 || syncfs(data) != 0) merge_stop("/data");
}
