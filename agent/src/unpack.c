#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "archive.h"
#include "attributes.h"
#include "base.h"
#include "disks.h"
#include "failure.h"
#include "listing.h"
#include "reading.h"
#include "staged.h"
#include "transfer.h"
#include "volume.h"

/* A directory that is being filled, and what it will be like. */
struct level {
    int fd;
    uint32_t mode;
    struct timespec time;
};

static struct volume volume;
static struct level *levels;
static size_t depth;
static int data = -1, links = -1;
static int file = -1; /* the one whose data comes */
static uint64_t file_size, file_until;
static struct timespec file_time;
static uint32_t numbered;
static uint64_t entries, bytes, notes;

/* Nothing of it stays. */
static _Noreturn void give_up(int error, const char *what) {
    for (; depth > 0; depth--) close_fd(&levels[depth - 1].fd);
    close_fd(&file);
    close_fd(&links);
    if (data >= 0) (void)tree_remove(data, STAGED_NEW);
    child_fail(EXIT_REFUSED, error, "%s", what);
}

static _Noreturn void stop(const char *what) {
    char why[200];
    int error = errno;
    text(why, sizeof why, "%.120s: %s", what, strerror(error));
    give_up(error, why);
}

static _Noreturn void malformed(void) {
    give_up(EPROTO, "the archive is malformed");
}

static int here(void) {
    return levels[depth - 1].fd;
}

static struct timespec time_of(const struct archive_record *record) {
    return (struct timespec){.tv_sec = (time_t)record->seconds, .tv_nsec = (long)record->nanoseconds};
}

static void set_times(int fd, struct timespec time) {
    (void)futimens(fd, (struct timespec[2]){time, time});
}

static void finish_file(void) {
    if (file < 0) return;
    if (file_until < file_size && ftruncate(file, (off_t)file_size) != 0) stop("a file");
    set_times(file, file_time);
    close_fd(&file);
}

static const char *number_name(uint32_t number) {
    static char name[16];
    text(name, sizeof name, "%u", number);
    return name;
}

static void begin_file(const struct archive_record *record, const char *name) {
    file = openat(here(), name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, record->mode & 0777);
    if (file < 0) stop(name);
    if (record->body_size > 0 && !attributes_set(file, record->body, record->body_size, false)) malformed();
    file_size = record->size;
    file_until = 0;
    file_time = time_of(record);
    if (record->number == 0) return;
    if (record->number != ++numbered) malformed();
    if (linkat(here(), name, links, number_name(record->number), 0) != 0) stop(name);
}

static void enter(const struct archive_record *record, const char *name) {
    if (depth > ARCHIVE_DEPTH_MAX) malformed();
    if (mkdirat(here(), name, 0700) != 0) stop(name);
    int fd = folder_open(here(), name);
    if (fd < 0) stop(name);
    if (record->body_size > 0 && !attributes_set(fd, record->body, record->body_size, false)) malformed();
    levels[depth++] = (struct level){.fd = fd, .mode = record->mode & 01777, .time = time_of(record)};
}

static void leave(void) {
    if (depth <= 1) malformed();
    struct level *level = &levels[depth - 1];
    if (fchmod(level->fd, level->mode) != 0) stop("a directory");
    set_times(level->fd, level->time);
    close_fd(&level->fd);
    depth--;
}

static void link_to(const struct archive_record *record, const char *name) {
    char target[ARCHIVE_TARGET_MAX + 1];
    struct timespec times[2] = {time_of(record), time_of(record)};
    memcpy(target, record->body, record->body_size);
    target[record->body_size] = 0;
    if (symlinkat(target, here(), name) != 0) stop(name);
    (void)utimensat(here(), name, times, AT_SYMLINK_NOFOLLOW);
}

static void run(const struct archive_record *record, size_t used) {
    uint64_t after = volume_position(&volume) + used;
    if (file < 0 || record->size < file_until || record->length == 0) malformed();
    if (record->size + record->length > file_size) malformed();
    if (!volume_skip(&volume, used + archive_padding(after, record->length))) stop("the archive");
    if (!volume_copy_to(&volume, file, record->size, record->length)) stop("a file");
    if (!volume_skip(&volume, archive_padding(volume_position(&volume), 0))) stop("the archive");
    file_until = record->size + record->length;
    bytes += record->length;
}

/* One record other than DATA. False: it was the last. */
static bool make(const struct archive_record *record) {
    char name[ARCHIVE_NAME_MAX + 1];
    memcpy(name, record->name, record->name_size);
    name[record->name_size] = 0;
    finish_file();
    switch (record->kind) {
    case ARCHIVE_FOLDER:
        enter(record, name);
        break;
    case ARCHIVE_FILE:
        begin_file(record, name);
        break;
    case ARCHIVE_SYMLINK:
        link_to(record, name);
        break;
    case ARCHIVE_HARD:
        if (record->number == 0 || record->number > numbered) malformed();
        if (linkat(links, number_name(record->number), here(), name, 0) != 0) stop(name);
        break;
    case ARCHIVE_LEAVE:
        leave();
        return true;
    case ARCHIVE_NOTE:
        notes++;
        return true;
    case ARCHIVE_END:
        if (depth != 1 || record->size != entries || record->length != bytes || record->number != notes) malformed();
        return false;
    case ARCHIVE_DATA:
    case ARCHIVE_GONE:
    case ARCHIVE_GONE_FOLDER:
    case ARCHIVE_PASS:
    case ARCHIVE_TOP:
    case ARCHIVE_WAS:
    default:
        malformed();
    }
    entries++;
    return true;
}

static void unpack(void) {
    if (!reading_begin(&volume, false)) malformed();
    for (;;) {
        struct archive_record record;
        size_t used;
        if (!reading_next(&volume, false, &record, &used)) malformed();
        if (record.kind == ARCHIVE_DATA) {
            run(&record, used);
            continue;
        }
        if (!make(&record)) return;
        if (!reading_skip(&volume, used)) stop("the archive");
    }
}

static void prepare(void) {
    data = folder_open(AT_FDCWD, DATA);
    if (data < 0) stop("/data");
    staged_recover(data);
    if (mkdirat(data, STAGED_NEW, 0700) != 0) stop(STAGED_NEW);
    AUTO_CLOSE int new = folder_open(data, STAGED_NEW);
    if (new < 0 || mkdirat(new, STAGED_TREE, 0700) != 0 || mkdirat(new, STAGED_LINKS, 0700) != 0) stop(STAGED_NEW);
    links = folder_open(new, STAGED_LINKS);
    levels[0].fd = folder_open(new, STAGED_TREE);
    depth = 1;
    if (links < 0 || levels[0].fd < 0) stop(STAGED_NEW);
}

void transfer_import(void) {
    char why[160];
    listing_allow_depth();
    (void)umask(0);
    levels = calloc(ARCHIVE_DEPTH_MAX + 2, sizeof *levels);
    if (levels == NULL) stop("no memory");
    prepare();
    if (!volume_open(&volume, false)) stop("the disk with the archive");
    unpack();
    close_fd(&levels[0].fd);
    depth = 0;
    close_fd(&links);
    if (!staged_fits(data, why, sizeof why)) give_up(EEXIST, why);
    if (!staged_apply(data)) stop("/data");
    _exit(0);
}
