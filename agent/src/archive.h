/* Records of the archive in PROTOCOL.md, in which files move between /data and the host.
 * Pure: no system calls, no allocation, so that it can be fuzzed on the host. */
#ifndef BOX_ARCHIVE_H
#define BOX_ARCHIVE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ARCHIVE_HEADER 16u
#define ARCHIVE_RECORD 48u
#define ARCHIVE_UNIT 8u
#define ARCHIVE_BLOCK 4096u
#define ARCHIVE_LONG 65536u
#define ARCHIVE_NAME_MAX 255u
#define ARCHIVE_TARGET_MAX 4095u
#define ARCHIVE_BODY_MAX 65535u
#define ARCHIVE_DEPTH_MAX 16384u
#define ARCHIVE_DIGEST 16u
#define ARCHIVE_NUMBERS_MAX 1048576u
#define ARCHIVE_SIZE_MAX (UINT64_C(1) << 44)

enum archive_kind {
    ARCHIVE_FOLDER = 1,
    ARCHIVE_LEAVE = 2,
    ARCHIVE_FILE = 3,
    ARCHIVE_SYMLINK = 4,
    ARCHIVE_HARD = 5,
    ARCHIVE_DATA = 6,
    ARCHIVE_NOTE = 7,
    ARCHIVE_END = 8,
    /* Only in an archive of changes. */
    ARCHIVE_GONE = 9,
    ARCHIVE_GONE_FOLDER = 10,
    ARCHIVE_PASS = 11,
    ARCHIVE_TOP = 12,
    ARCHIVE_WAS = 13,
};

/* What of an entry is another than it was; none in a plain archive. */
enum archive_change {
    CHANGE_ADDED = 1,
    CHANGE_CONTENT = 2,
    CHANGE_MODE = 4,
    CHANGE_OWNER = 8,
    CHANGE_ATTRIBUTES = 16,
    CHANGE_TYPE = 32,
    CHANGE_LINKS = 64,
};

enum archive_reason {
    REASON_FIFO = 1,
    REASON_SOCKET = 2,
    REASON_CHARACTER_DEVICE = 3,
    REASON_BLOCK_DEVICE = 4,
    REASON_UNREADABLE = 5,
    REASON_TOO_DEEP = 6,
    REASON_CHANGED = 7,
    REASON_ATTRIBUTES = 8,
    REASON_UNKNOWN_KIND = 9,
};

/* Name and body point into what was parsed, and do not end with a zero byte. */
struct archive_record {
    enum archive_kind kind;
    uint32_t mode, uid, gid, number, change;
    uint64_t size, length;
    int64_t seconds;
    uint32_t nanoseconds;
    const char *name;
    size_t name_size;
    const uint8_t *body;
    size_t body_size;
};

enum archive_result { ARCHIVE_NEED_MORE, ARCHIVE_READY, ARCHIVE_BAD };

/* Whether this is how an archive, or one of changes, begins (ARCHIVE_HEADER bytes). */
bool archive_begins(const uint8_t *at, bool changes);
void archive_begin(uint8_t *at, bool changes);

/* The fixed part of a record, ARCHIVE_RECORD bytes. Name, body and padding are the caller's to add. */
void archive_put(uint8_t *at, const struct archive_record *record);

/* Whether a record may be in a plain archive, or in one of changes. */
bool archive_fits(const struct archive_record *record, bool changes);

/* Parses the record at the front of `have` bytes. NEED_MORE: *used says how many bytes it takes to know more; READY: how
 * long it is with name and body, without padding. */
enum archive_result archive_parse(const uint8_t *at, size_t have, struct archive_record *out, size_t *used);

/* How many zeros belong behind `position`, so that the next record, or the data of one this long, may begin. */
size_t archive_padding(uint64_t position, uint64_t data_length);

#endif
