#include "archive.h"

#include <endian.h>
#include <string.h>

#define SECONDS_MIN (-(INT64_C(1) << 31))
#define SECONDS_MAX ((INT64_C(1) << 34) - (INT64_C(1) << 31) - 1)

static const uint8_t magic[2][ARCHIVE_HEADER] = {
    {'B', 'O', 'X', 'D', 'A', 'T', 'A', 1},
    {'B', 'O', 'X', 'D', 'I', 'F', 'F', 1},
};

/* The fixed part as it lies in an archive, little endian. */
struct packed {
    uint8_t kind, change;
    uint16_t mode, name_size, body_size;
    uint64_t size, seconds;
    uint32_t nanoseconds, uid, gid, number;
    uint64_t length;
};
_Static_assert(sizeof(struct packed) == ARCHIVE_RECORD, "no gaps");

bool archive_begins(const uint8_t *at, bool changes) {
    return memcmp(at, magic[changes], ARCHIVE_HEADER) == 0;
}

void archive_begin(uint8_t *at, bool changes) {
    memcpy(at, magic[changes], ARCHIVE_HEADER);
}

void archive_put(uint8_t *at, const struct archive_record *record) {
    int64_t seconds = record->seconds;
    if (seconds < SECONDS_MIN) seconds = SECONDS_MIN;
    if (seconds > SECONDS_MAX) seconds = SECONDS_MAX;
    struct packed head = {
        .kind = (uint8_t)record->kind,
        .change = (uint8_t)record->change,
        .mode = htole16((uint16_t)(record->mode & 07777)),
        .name_size = htole16((uint16_t)record->name_size),
        .body_size = htole16((uint16_t)record->body_size),
        .size = htole64(record->size),
        .seconds = htole64((uint64_t)seconds),
        .nanoseconds = htole32(record->nanoseconds),
        .uid = htole32(record->uid),
        .gid = htole32(record->gid),
        .number = htole32(record->number),
        .length = htole64(record->length),
    };
    memcpy(at, &head, sizeof head);
}

size_t archive_padding(uint64_t position, uint64_t data_length) {
    uint64_t unit = data_length >= ARCHIVE_LONG ? ARCHIVE_BLOCK : ARCHIVE_UNIT;
    return (size_t)((unit - position % unit) % unit);
}

static bool has_name(enum archive_kind kind) {
    return kind == ARCHIVE_FOLDER || kind == ARCHIVE_FILE || kind == ARCHIVE_SYMLINK || kind == ARCHIVE_HARD ||
           kind == ARCHIVE_NOTE || kind == ARCHIVE_GONE || kind == ARCHIVE_GONE_FOLDER || kind == ARCHIVE_PASS;
}

/* Also of /data itself, which has none. */
static size_t name_min(enum archive_kind kind) {
    return kind == ARCHIVE_WAS ? 0 : 1;
}

static size_t body_max(enum archive_kind kind) {
    if (kind == ARCHIVE_FOLDER || kind == ARCHIVE_FILE || kind == ARCHIVE_PASS || kind == ARCHIVE_TOP)
        return ARCHIVE_BODY_MAX;
    if (kind == ARCHIVE_WAS) return ARCHIVE_DIGEST;
    return kind == ARCHIVE_SYMLINK ? ARCHIVE_TARGET_MAX : 0;
}

/* What is changed is told of entries; what is gone, and all that is none, has no more to tell. */
static bool has_change(enum archive_kind kind) {
    return kind == ARCHIVE_FOLDER || kind == ARCHIVE_FILE || kind == ARCHIVE_SYMLINK || kind == ARCHIVE_HARD ||
           kind == ARCHIVE_TOP;
}

bool archive_fits(const struct archive_record *record, bool changes) {
    if (!changes) return record->kind <= ARCHIVE_END && record->change == 0;
    return has_change(record->kind) == (record->change != 0);
}

static bool sound(const struct packed *head) {
    enum archive_kind kind = (enum archive_kind)head->kind;
    size_t name = le16toh(head->name_size), body = le16toh(head->body_size);
    if (head->kind < ARCHIVE_FOLDER || head->kind > ARCHIVE_WAS || head->change >= 2 * CHANGE_LINKS) return false;
    bool named = has_name(kind) || kind == ARCHIVE_WAS;
    if (named ? name < name_min(kind) || name > ARCHIVE_NAME_MAX : name != 0) return false;
    if (kind == ARCHIVE_WAS && body != ARCHIVE_DIGEST) return false;
    if (body > body_max(kind) || (kind == ARCHIVE_SYMLINK && body == 0)) return false;
    int64_t seconds = (int64_t)le64toh(head->seconds);
    return le16toh(head->mode) <= 07777 && le64toh(head->size) <= ARCHIVE_SIZE_MAX &&
           le64toh(head->length) <= ARCHIVE_SIZE_MAX && le32toh(head->nanoseconds) < 1000000000u &&
           seconds >= SECONDS_MIN && seconds <= SECONDS_MAX;
}

static bool sound_name(const char *name, size_t size) {
    if (memchr(name, '/', size) != NULL || memchr(name, 0, size) != NULL) return false;
    return !(size == 1 && name[0] == '.') && !(size == 2 && name[0] == '.' && name[1] == '.');
}

enum archive_result archive_parse(const uint8_t *at, size_t have, struct archive_record *out, size_t *used) {
    struct packed head;
    *used = sizeof head;
    if (have < sizeof head) return ARCHIVE_NEED_MORE;
    memcpy(&head, at, sizeof head);
    if (!sound(&head)) return ARCHIVE_BAD;
    *out = (struct archive_record){
        .kind = (enum archive_kind)head.kind,
        .change = head.change,
        .mode = le16toh(head.mode),
        .uid = le32toh(head.uid),
        .gid = le32toh(head.gid),
        .number = le32toh(head.number),
        .size = le64toh(head.size),
        .length = le64toh(head.length),
        .seconds = (int64_t)le64toh(head.seconds),
        .nanoseconds = le32toh(head.nanoseconds),
        .name = (const char *)at + sizeof head,
        .name_size = le16toh(head.name_size),
        .body_size = le16toh(head.body_size),
    };
    out->body = (const uint8_t *)out->name + out->name_size;
    *used += out->name_size + out->body_size;
    if (have < *used) return ARCHIVE_NEED_MORE;
    if (!sound_name(out->name, out->name_size)) return ARCHIVE_BAD;
    if (out->kind == ARCHIVE_SYMLINK && memchr(out->body, 0, out->body_size) != NULL) return ARCHIVE_BAD;
    return ARCHIVE_READY;
}
