#include "attributes.h"

#include <endian.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/xattr.h>

#include "archive.h"

#define LENGTHS 4u
#define USER "user."
#define USER_SIZE 5u

static void put16(uint8_t *at, size_t value) {
    uint16_t little = htole16((uint16_t)value);
    memcpy(at, &little, sizeof little);
}

static size_t get16(const uint8_t *at) {
    uint16_t little;
    memcpy(&little, at, sizeof little);
    return le16toh(little);
}

/* The shortest is one byte, and the zero after it. */
#define LIST_MAX 65536u
#define NAMES_MAX (LIST_MAX / 2)

static int by_name(const void *one, const void *other) {
    return strcmp(*(const char *const *)one, *(const char *const *)other);
}

static size_t names_of(int fd, char *list, const char **names, bool all) {
    ssize_t length = flistxattr(fd, list, LIST_MAX);
    size_t count = 0;
    for (const char *name = list; length > 0 && name < list + length; name += strlen(name) + 1) {
        if (all || (strncmp(name, USER, USER_SIZE) == 0 && name[USER_SIZE] != 0)) names[count++] = name;
    }
    qsort(names, count, sizeof *names, by_name);
    return count;
}

bool attributes_get(int fd, uint8_t *to, size_t *size, bool all) {
    static char list[LIST_MAX];
    static const char *names[NAMES_MAX];
    *size = 0;
    size_t used = 0, count = names_of(fd, list, names, all);
    for (size_t i = 0; i < count; i++) {
        const char *name = names[i];
        size_t name_size = strlen(name);
        size_t head = LENGTHS + name_size;
        if (used + head > ARCHIVE_BODY_MAX) return false;
        ssize_t value = fgetxattr(fd, name, to + used + head, ARCHIVE_BODY_MAX - used - head);
        /* With no room left, 0 would ask for its length. */
        if (value < 0 || used + head == ARCHIVE_BODY_MAX) return false;
        put16(to + used, name_size);
        put16(to + used + 2, (size_t)value);
        memcpy(to + used + LENGTHS, name, name_size);
        used += head + (size_t)value;
    }
    *size = used;
    return true;
}

bool attributes_same(int one, int other) {
    static uint8_t bodies[2][ARCHIVE_BODY_MAX + 1];
    size_t sizes[2];
    bool fits = attributes_get(one, bodies[0], &sizes[0], true);
    return attributes_get(other, bodies[1], &sizes[1], true) == fits && sizes[0] == sizes[1] &&
           memcmp(bodies[0], bodies[1], sizes[0]) == 0;
}

/* The attribute at *at, which moves behind it. False: there is none that makes sense. */
static bool next(const uint8_t *body, size_t size, size_t *at, char *name, const uint8_t **value, size_t *value_size) {
    if (size - *at < LENGTHS) return false;
    size_t name_size = get16(body + *at);
    *value_size = get16(body + *at + 2);
    *at += LENGTHS;
    if (name_size < 1 || name_size > ARCHIVE_NAME_MAX || size - *at < name_size) return false;
    if (size - *at - name_size < *value_size || memchr(body + *at, 0, name_size) != NULL) return false;
    memcpy(name, body + *at, name_size);
    name[name_size] = 0;
    *value = body + *at + name_size;
    *at += name_size + *value_size;
    return true;
}

bool attributes_set(int fd, const uint8_t *body, size_t size, bool all) {
    for (size_t at = 0; at < size;) {
        char name[ARCHIVE_NAME_MAX + 1];
        const uint8_t *value;
        size_t value_size;
        errno = 0;
        if (!next(body, size, &at, name, &value, &value_size)) return false;
        if (!all && strncmp(name, USER, USER_SIZE) != 0) return false;
        if (fsetxattr(fd, name, value, value_size, 0) != 0 && all && errno == ENOSPC) return false;
    }
    return true;
}

static bool has(const uint8_t *body, size_t size, const char *wanted) {
    char name[ARCHIVE_NAME_MAX + 1];
    const uint8_t *value;
    size_t value_size;
    for (size_t at = 0; at < size && next(body, size, &at, name, &value, &value_size);) {
        if (strcmp(name, wanted) == 0) return true;
    }
    return false;
}

void attributes_trim(int fd, const uint8_t *body, size_t size) {
    static char list[LIST_MAX];
    static const char *names[NAMES_MAX];
    size_t count = names_of(fd, list, names, true);
    for (size_t i = 0; i < count; i++) {
        if (!has(body, size, names[i])) (void)fremovexattr(fd, names[i]);
    }
}
