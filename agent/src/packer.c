#include "packer.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "attributes.h"
#include "base.h"
#include "digest.h"
#include "failure.h"
#include "volume.h"

#define BLOCK_512 512u

static struct volume volume;
static struct numbers numbers;
static bool of_changes, of_root, with_data;
static uint64_t entries, notes, bytes;
static uint8_t body[ARCHIVE_BODY_MAX + 1];

_Noreturn void packer_stop(const char *what) {
    child_fail(EXIT_REFUSED, errno, "%s: %s", what, strerror(errno));
}

void packer_begin(bool changes, bool data) {
    uint8_t header[ARCHIVE_HEADER];
    of_changes = changes;
    with_data = data;
    if (!volume_open(&volume, true)) packer_stop("the disk for the archive");
    archive_begin(header, changes);
    if (!volume_write(&volume, header, sizeof header)) packer_stop("the archive");
}

void packer_of_root(void) {
    of_root = true;
}

static bool is_entry(enum archive_kind kind) {
    return kind != ARCHIVE_LEAVE && kind != ARCHIVE_DATA && kind != ARCHIVE_NOTE && kind != ARCHIVE_END &&
           kind != ARCHIVE_PASS && kind != ARCHIVE_WAS;
}

void packer_add(const struct archive_record *record) {
    uint8_t head[ARCHIVE_RECORD];
    archive_put(head, record);
    bool done = volume_write(&volume, head, sizeof head) && volume_write(&volume, record->name, record->name_size) &&
                volume_write(&volume, record->body, record->body_size) &&
                volume_zeros(&volume, archive_padding(volume_position(&volume), record->length));
    if (!done) packer_stop("the archive");
    entries += is_entry(record->kind);
}

static struct archive_record named(enum archive_kind kind, const char *name, const struct stat *facts, uint32_t change) {
    return (struct archive_record){
        .kind = kind,
        .change = change,
        .name = name,
        .name_size = strlen(name),
        .mode = facts->st_mode & 07777,
        .uid = facts->st_uid,
        .gid = facts->st_gid,
        .seconds = facts->st_mtim.tv_sec,
        .nanoseconds = (uint32_t)facts->st_mtim.tv_nsec,
    };
}

void packer_note(const char *name, enum archive_reason reason) {
    struct archive_record record = {.kind = ARCHIVE_NOTE, .name = name, .name_size = strlen(name)};
    record.number = (uint32_t)reason;
    packer_add(&record);
    notes++;
}

static void attributes(struct archive_record *record, const char *name, int fd) {
    size_t size;
    if (!attributes_get(fd, body, &size, of_changes || of_root) && name[0] != 0) packer_note(name, REASON_ATTRIBUTES);
    record->body = body;
    record->body_size = size;
}

static bool run(int fd, uint64_t offset, uint64_t length) {
    bool whole = true, is_long = length >= ARCHIVE_LONG && offset % ARCHIVE_BLOCK == 0;
    struct archive_record record = {.kind = ARCHIVE_DATA, .size = offset, .length = length};
    packer_add(&record);
    /* Then the bytes go by disk, not by processor. An overlay says that it can, and squashfs below it cannot. */
    if (is_long) is_long = !of_root && fcntl(fd, F_SETFL, O_DIRECT | O_NOATIME) == 0;
    if (!volume_copy_from(&volume, fd, offset, length, &whole)) packer_stop("the archive");
    if (is_long) (void)fcntl(fd, F_SETFL, O_NOATIME);
    if (!volume_zeros(&volume, archive_padding(volume_position(&volume), 0))) packer_stop("the archive");
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

/* An overlay shows inodes of several file systems; ext4 and squashfs count theirs in 32 bits. */
static uint64_t key_of(const struct stat *facts) {
    return of_root ? facts->st_ino ^ (uint64_t)facts->st_dev << 32 : facts->st_ino;
}

void packer_file(int at, const char *name, uint32_t change) {
    struct stat facts;
    AUTO_CLOSE int fd = openat(at, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_NOATIME | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &facts) != 0 || !S_ISREG(facts.st_mode) || (uint64_t)facts.st_size > ARCHIVE_SIZE_MAX) {
        packer_note(name, REASON_UNREADABLE);
        return;
    }
    /* One more than there can be numbers of goes in as a file of its own. */
    struct number *known = facts.st_nlink > 1 ? numbers_at(&numbers, key_of(&facts)) : NULL;
    bool is_first = known == NULL || known->value == 0;
    struct archive_record record = named(is_first ? ARCHIVE_FILE : ARCHIVE_HARD, name, &facts, change);
    if (known != NULL) {
        record.number = numbers_give(&numbers, known);
        known->names++;
    }
    if (is_first) {
        record.size = (uint64_t)facts.st_size;
        attributes(&record, name, fd);
    }
    packer_add(&record);
    bool dense = (uint64_t)facts.st_blocks * BLOCK_512 >= record.size;
    if (is_first && with_data && !runs(fd, record.size, dense)) packer_note(name, REASON_CHANGED);
}

void packer_symlink(int at, const char *name, const struct stat *facts, uint32_t change) {
    struct archive_record record = named(ARCHIVE_SYMLINK, name, facts, change);
    ssize_t size = readlinkat(at, name, (char *)body, ARCHIVE_TARGET_MAX + 1);
    if (size <= 0 || size > (ssize_t)ARCHIVE_TARGET_MAX) {
        packer_note(name, REASON_UNREADABLE);
        return;
    }
    record.body = body;
    record.body_size = (size_t)size;
    packer_add(&record);
}

void packer_folder(enum archive_kind kind, int fd, const char *name, const struct stat *facts, uint32_t change) {
    struct archive_record record = named(kind, name, facts, change);
    attributes(&record, name, fd);
    packer_add(&record);
}

void packer_was(int at, const char *name, const struct stat *facts) {
    uint8_t digest[ARCHIVE_DIGEST];
    struct archive_record record = named(ARCHIVE_WAS, name != NULL ? name : "", facts, 0);
    (void)digest_of(at, name, facts, digest);
    record.number = (facts->st_mode & S_IFMT) >> 12;
    record.size = S_ISREG(facts->st_mode) ? (uint64_t)facts->st_size : 0;
    record.body = digest;
    record.body_size = sizeof digest;
    packer_add(&record);
}

void packer_special(const char *name, const struct stat *facts) {
    if (S_ISFIFO(facts->st_mode)) packer_note(name, REASON_FIFO);
    else if (S_ISSOCK(facts->st_mode)) packer_note(name, REASON_SOCKET);
    else if (S_ISCHR(facts->st_mode)) packer_note(name, REASON_CHARACTER_DEVICE);
    else if (S_ISBLK(facts->st_mode)) packer_note(name, REASON_BLOCK_DEVICE);
    else packer_note(name, REASON_UNKNOWN_KIND);
}

struct numbers *packer_numbers(void) {
    return &numbers;
}

uint64_t packer_entries(void) {
    return entries;
}

void packer_end(void) {
    packer_add(&(struct archive_record){
        .kind = ARCHIVE_END, .size = entries, .length = bytes, .number = (uint32_t)notes});
    if (!volume_finish(&volume)) packer_stop("the archive");
}
