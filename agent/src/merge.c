#include "merge.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base.h"
#include "disks.h"
#include "failure.h"
#include "listing.h"
#include "reading.h"
#include "staged.h"
#include "transfer.h"

static struct merge merge;

_Noreturn void merge_malformed(void) {
    child_fail(EXIT_REFUSED, EPROTO, "the archive of the changes is malformed");
}

_Noreturn void merge_stop(const char *what) {
    child_fail(EXIT_REFUSED, errno, "%.120s: %s", what, strerror(errno));
}

struct place *merge_here(struct merge *all) {
    return &all->places[all->depth - 1];
}

void merge_path_each(const struct merge *all, void (*each)(const char *name)) {
    for (size_t i = 1; i < all->depth; i++) each(all->places[i].name);
}

static struct place place_of(const struct archive_record *record, const char *name) {
    if (merge.depth > ARCHIVE_DEPTH_MAX) merge_malformed();
    struct place place = {
        .parent = -1,
        .mode = record->mode,
        .uid = record->uid,
        .gid = record->gid,
        .time = {.tv_sec = (time_t)record->seconds, .tv_nsec = (long)record->nanoseconds},
        .name = strdup(name),
    };
    if (place.name == NULL) merge_stop("no memory for directories");
    return place;
}

static void push(const struct archive_record *record, const char *name) {
    struct place place = place_of(record, name);
    if (merge.applying) {
        apply_enter(&merge, record, name, check_verdict(merge.index), &place);
    } else {
        check_record(&merge, record, name);
        check_enter(&merge, name, &place);
    }
    merge.places[merge.depth++] = place;
}

/* A directory that is gone: while looking, what was in it is compared one by one; later it goes as a whole. */
static void push_gone(const struct archive_record *record, const char *name) {
    merge.skipping++;
    if (merge.applying) return;
    struct place place = place_of(record, name);
    check_enter(&merge, name, &place);
    merge.places[merge.depth++] = place;
}

static void drop(void) {
    struct place *place = merge_here(&merge);
    close_fd(&place->parent);
    free(place->body);
    free(place->name);
    free(place->listed);
    merge.depth--;
}

static void pop(void) {
    if (merge.depth <= 1) merge_malformed();
    if (merge.applying) apply_leave(merge_here(&merge));
    drop();
}

static void finish_file(void) {
    if (!merge.file.active) return;
    if (merge.applying) apply_finish(&merge);
    else check_finish(&merge);
    close_fd(&merge.file.fd);
    merge.file = (struct arriving){.fd = -1};
}

static void begin_file(const struct archive_record *record, const char *name) {
    if (record->kind == ARCHIVE_HARD) {
        if (record->number == 0 || record->number > merge.numbered) merge_malformed();
        return;
    }
    if (record->number != 0 && record->number != ++merge.numbered) merge_malformed();
    if (merge.numbered > ARCHIVE_NUMBERS_MAX) merge_malformed();
    merge.file = (struct arriving){.active = true, .fd = -1, .size = record->size, .number = record->number};
    text(merge.file.name, sizeof merge.file.name, "%s", name);
}

/* A record that stands for something in the present directory. */
static void one(const struct archive_record *record, const char *name) {
    if (record->kind == ARCHIVE_TOP && (merge.depth != 1 || merge.index != 0)) merge_malformed();
    /* What is there is ours meanwhile, or would be moved by the next start. */
    if (merge.depth == 1 && (strcmp(name, STAGED_NEW) == 0 || strcmp(name, STAGED_READY) == 0)) merge_malformed();
    if (record->kind == ARCHIVE_FILE || record->kind == ARCHIVE_HARD) begin_file(record, name);
    if (record->kind == ARCHIVE_FOLDER || record->kind == ARCHIVE_PASS) push(record, name);
    else if (merge.applying) apply_record(&merge, record, name, check_verdict(merge.index));
    else check_record(&merge, record, name);
    if (record->kind == ARCHIVE_GONE_FOLDER) push_gone(record, name);
    merge.index++;
}

/* What was in a directory that is gone. */
static void skip(const struct archive_record *record, const char *name) {
    bool is_gone = record->kind == ARCHIVE_GONE || record->kind == ARCHIVE_GONE_FOLDER;
    if (!is_gone && record->kind != ARCHIVE_LEAVE && record->kind != ARCHIVE_NOTE) merge_malformed();
    if (is_gone && !merge.applying) check_inside(&merge, record, name);
    if (record->kind == ARCHIVE_GONE_FOLDER) push_gone(record, name);
    if (record->kind != ARCHIVE_LEAVE) return;
    merge.skipping--;
    if (merge.applying) return;
    check_left(&merge);
    drop();
}

static void note_was(const struct archive_record *record) {
    merge.was = (struct was){
        .known = true,
        .type = record->number << 12 & S_IFMT,
        .mode = record->mode,
        .uid = record->uid,
        .gid = record->gid,
        .size = record->size,
    };
    memcpy(merge.was.digest, record->body, ARCHIVE_DIGEST);
}

static void data(const struct archive_record *record, size_t used) {
    struct arriving *file = &merge.file;
    uint64_t after = volume_position(&merge.volume) + used;
    if (!file->active || record->size < file->until || record->length == 0) merge_malformed();
    if (record->size + record->length > file->size) merge_malformed();
    struct archive_record copy = *record; /* what it points to moves with the volume */
    if (!volume_skip(&merge.volume, used + archive_padding(after, copy.length))) merge_malformed();
    if (file->fd < 0 || file->differs) {
        if (!volume_skip(&merge.volume, copy.length)) merge_malformed();
    } else if (merge.applying) {
        apply_data(&merge, &copy);
    } else {
        check_data(&merge, &copy);
    }
    if (!volume_skip(&merge.volume, archive_padding(volume_position(&merge.volume), 0))) merge_malformed();
    file->until = copy.size + copy.length;
}

static bool record(const struct archive_record *found) {
    char name[ARCHIVE_NAME_MAX + 1];
    memcpy(name, found->name, found->name_size);
    name[found->name_size] = 0;
    finish_file();
    if (found->kind == ARCHIVE_WAS) {
        note_was(found);
        return true;
    }
    if (merge.skipping > 0) skip(found, name);
    else if (found->kind == ARCHIVE_LEAVE) pop();
    else if (found->kind == ARCHIVE_END) return false;
    else if (found->kind != ARCHIVE_NOTE) one(found, name);
    merge.was.known = false;
    return true;
}

static void read_all(bool applying) {
    merge.applying = applying;
    merge.index = 0;
    merge.numbered = 0;
    merge.file = (struct arriving){.fd = -1};
    if (!volume_open(&merge.volume, false)) merge_stop("the disk with the changes");
    if (!reading_begin(&merge.volume, true)) merge_malformed();
    for (;;) {
        struct archive_record found;
        size_t used;
        if (!reading_next(&merge.volume, true, &found, &used)) merge_malformed();
        if (found.kind == ARCHIVE_DATA) {
            data(&found, used);
            continue;
        }
        if (!record(&found)) break;
        if (!reading_skip(&merge.volume, used)) merge_malformed();
    }
    if (merge.depth != 1 || merge.skipping != 0) merge_malformed();
    close_fd(&merge.volume.fd);
}

void transfer_merge(bool theirs, bool dry) {
    listing_allow_depth();
    (void)umask(0);
    merge.theirs = theirs;
    merge.places = calloc(ARCHIVE_DEPTH_MAX + 2, sizeof *merge.places);
    if (merge.places == NULL) merge_stop("no memory for directories");
    merge.places[0] = (struct place){.parent = folder_open(AT_FDCWD, DATA)};
    merge.depth = 1;
    if (merge.places[0].parent < 0) merge_stop("/data");
    staged_recover(merge.places[0].parent);
    read_all(false);
    if (!dry && merge.taken > 0 && (theirs || merge.conflicts == 0)) {
        apply_begin(&merge);
        read_all(true);
        apply_end(&merge);
    }
    check_summary(&merge);
    _exit(0);
}
