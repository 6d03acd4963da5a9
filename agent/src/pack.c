#include <dirent.h>
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
#include "staged.h"
#include "transfer.h"
#include "volume.h"

#define BLOCK_512 512u

/* Which number a file with several names has got: open addressing, at most half full. */
struct numbers {
    uint64_t *inodes;
    uint32_t *values;
    size_t room, count;
};

static struct volume volume;
static struct numbers numbers;
static struct listing *levels;
static size_t depth;
static uint64_t entries, notes, bytes;
static uint8_t body[ARCHIVE_BODY_MAX + 1];

static _Noreturn void stop(const char *what) {
    child_fail(EXIT_REFUSED, errno, "%s: %s", what, strerror(errno));
}

static void add(const struct archive_record *record) {
    uint8_t head[ARCHIVE_RECORD];
    archive_put(head, record);
    bool done = volume_write(&volume, head, sizeof head) && volume_write(&volume, record->name, record->name_size) &&
                volume_write(&volume, record->body, record->body_size) &&
                volume_zeros(&volume, archive_padding(volume_position(&volume), record->length));
    if (!done) stop("the archive");
}

static struct archive_record named(enum archive_kind kind, const char *name, const struct stat *facts) {
    return (struct archive_record){
        .kind = kind,
        .name = name,
        .name_size = strlen(name),
        .mode = facts->st_mode & 07777,
        .uid = facts->st_uid,
        .gid = facts->st_gid,
        .seconds = facts->st_mtim.tv_sec,
        .nanoseconds = (uint32_t)facts->st_mtim.tv_nsec,
    };
}

static void note(const char *name, enum archive_reason reason) {
    struct archive_record record = {.kind = ARCHIVE_NOTE, .name = name, .name_size = strlen(name)};
    record.number = (uint32_t)reason;
    add(&record);
    notes++;
}

static void attributes(struct archive_record *record, const char *name, int fd) {
    size_t size;
    if (!attributes_get(fd, body, &size)) note(name, REASON_ATTRIBUTES);
    record->body = body;
    record->body_size = size;
}

static size_t slot_of(uint64_t inode) {
    size_t at = (size_t)(inode * UINT64_C(0x9E3779B97F4A7C15) >> 20) & (numbers.room - 1);
    while (numbers.values[at] != 0 && numbers.inodes[at] != inode) at = (at + 1) & (numbers.room - 1);
    return at;
}

static bool numbers_grow(void) {
    struct numbers old = numbers;
    numbers.room = old.room == 0 ? 1024 : old.room * 2;
    numbers.inodes = calloc(numbers.room, sizeof *numbers.inodes);
    numbers.values = calloc(numbers.room, sizeof *numbers.values);
    if (numbers.inodes == NULL || numbers.values == NULL) return false;
    for (size_t i = 0; i < old.room; i++) {
        if (old.values[i] == 0) continue;
        size_t at = slot_of(old.inodes[i]);
        numbers.inodes[at] = old.inodes[i];
        numbers.values[at] = old.values[i];
    }
    free(old.inodes);
    free(old.values);
    return true;
}

/* The number of this inode, and whether it is a new one. 0: there are too many. */
static uint32_t number_of(uint64_t inode, bool *is_new) {
    *is_new = false;
    if (numbers.count * 2 >= numbers.room && !numbers_grow()) child_fail(EXIT_REFUSED, ENOMEM, "no memory for links");
    size_t at = slot_of(inode);
    if (numbers.values[at] != 0) return numbers.values[at];
    if (numbers.count == ARCHIVE_NUMBERS_MAX) return 0;
    *is_new = true;
    numbers.inodes[at] = inode;
    numbers.values[at] = (uint32_t)++numbers.count;
    return numbers.values[at];
}

static bool run(int fd, uint64_t offset, uint64_t length) {
    bool whole = true, is_long = length >= ARCHIVE_LONG && offset % ARCHIVE_BLOCK == 0;
    struct archive_record record = {.kind = ARCHIVE_DATA, .size = offset, .length = length};
    add(&record);
    /* Then the bytes go by disk, not by processor. */
    if (is_long) is_long = fcntl(fd, F_SETFL, O_DIRECT | O_NOATIME) == 0;
    if (!volume_copy_from(&volume, fd, offset, length, &whole)) stop("the archive");
    if (is_long) (void)fcntl(fd, F_SETFL, O_NOATIME);
    if (!volume_zeros(&volume, archive_padding(volume_position(&volume), 0))) stop("the archive");
    bytes += length;
    return whole;
}

static bool runs(int fd, uint64_t size, bool dense) {
    if (dense) return size == 0 || run(fd, 0, size);
    bool whole = true;
    off_t end = 0;
    while ((uint64_t)end < size) {
        off_t start = lseek(fd, end, SEEK_DATA);
        if (start < 0 || (uint64_t)start >= size) break;
        end = lseek(fd, start, SEEK_HOLE);
        if (end <= start) break;
        uint64_t until = (uint64_t)end < size ? (uint64_t)end : size;
        whole = run(fd, (uint64_t)start, until - (uint64_t)start) && whole;
    }
    return whole;
}

static void file(int at, const char *name) {
    struct stat facts;
    AUTO_CLOSE int fd = openat(at, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_NOATIME | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &facts) != 0 || !S_ISREG(facts.st_mode) || (uint64_t)facts.st_size > ARCHIVE_SIZE_MAX) {
        note(name, REASON_UNREADABLE);
        return;
    }
    bool is_new = true;
    uint32_t number = facts.st_nlink > 1 ? number_of(facts.st_ino, &is_new) : 0;
    struct archive_record record = named(is_new || number == 0 ? ARCHIVE_FILE : ARCHIVE_HARD, name, &facts);
    record.number = number;
    if (record.kind == ARCHIVE_FILE) {
        record.size = (uint64_t)facts.st_size;
        attributes(&record, name, fd);
    }
    add(&record);
    entries++;
    bool dense = (uint64_t)facts.st_blocks * BLOCK_512 >= record.size;
    if (record.kind == ARCHIVE_FILE && !runs(fd, record.size, dense)) note(name, REASON_CHANGED);
}

static void link_to(int at, const char *name, const struct stat *facts) {
    struct archive_record record = named(ARCHIVE_SYMLINK, name, facts);
    ssize_t size = readlinkat(at, name, (char *)body, ARCHIVE_TARGET_MAX + 1);
    if (size <= 0 || size > (ssize_t)ARCHIVE_TARGET_MAX) {
        note(name, REASON_UNREADABLE);
        return;
    }
    record.body = body;
    record.body_size = (size_t)size;
    add(&record);
    entries++;
}

static void enter(int at, const char *name, const struct stat *facts) {
    if (depth > ARCHIVE_DEPTH_MAX) {
        note(name, REASON_TOO_DEEP);
        return;
    }
    int fd = folder_open(at, name);
    if (fd < 0) {
        note(name, REASON_UNREADABLE);
        return;
    }
    struct archive_record record = named(ARCHIVE_FOLDER, name, facts);
    attributes(&record, name, fd);
    add(&record);
    entries++;
    if (!listing_open(&levels[depth++], fd)) stop("no memory for directories");
}

static void other(int at, const char *name) {
    struct stat facts;
    if (fstatat(at, name, &facts, AT_SYMLINK_NOFOLLOW) != 0) note(name, REASON_UNREADABLE);
    else if (S_ISREG(facts.st_mode)) file(at, name);
    else if (S_ISDIR(facts.st_mode)) enter(at, name, &facts);
    else if (S_ISLNK(facts.st_mode)) link_to(at, name, &facts);
    else if (S_ISFIFO(facts.st_mode)) note(name, REASON_FIFO);
    else if (S_ISSOCK(facts.st_mode)) note(name, REASON_SOCKET);
    else if (S_ISCHR(facts.st_mode)) note(name, REASON_CHARACTER_DEVICE);
    else if (S_ISBLK(facts.st_mode)) note(name, REASON_BLOCK_DEVICE);
    else note(name, REASON_UNKNOWN_KIND);
}

/* What the file system and an import keep at the top for themselves. */
static bool left_out(const char *name) {
    struct stat facts;
    if (depth != 1) return false;
    if (strcmp(name, STAGED_NEW) == 0 || strcmp(name, STAGED_READY) == 0) return true;
    return strcmp(name, "lost+found") == 0 && fstatat(levels[0].fd, name, &facts, AT_SYMLINK_NOFOLLOW) == 0 &&
           S_ISDIR(facts.st_mode) && facts.st_nlink == 2 && folder_is_empty(levels[0].fd, name);
}

static void walk(void) {
    while (depth > 0) {
        struct listing *level = &levels[depth - 1];
        uint8_t type;
        errno = 0;
        const char *name = listing_next(level, &type);
        if (name != NULL) {
            if (left_out(name)) continue;
            /* What the directory says of the kind saves a call for each file; the file itself is asked again. */
            if (type == DT_REG) file(level->fd, name);
            else other(level->fd, name);
            continue;
        }
        if (errno != 0) stop("reading a directory");
        listing_close(level);
        depth--;
        if (depth > 0) add(&(struct archive_record){.kind = ARCHIVE_LEAVE});
    }
}

void transfer_export(void) {
    uint8_t header[ARCHIVE_HEADER];
    listing_allow_depth();
    levels = calloc(ARCHIVE_DEPTH_MAX + 2, sizeof *levels);
    int top = folder_open(AT_FDCWD, DATA);
    if (levels == NULL || top < 0 || !listing_open(&levels[0], top)) stop("/data");
    depth = 1;
    if (!volume_open(&volume, true)) stop("the disk for the archive");
    archive_begin(header);
    if (!volume_write(&volume, header, sizeof header)) stop("the archive");
    walk();
    add(&(struct archive_record){
        .kind = ARCHIVE_END, .size = entries, .length = bytes, .number = (uint32_t)notes});
    if (!volume_finish(&volume)) stop("the archive");
    _exit(0);
}
