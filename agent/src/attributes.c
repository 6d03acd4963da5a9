#include "attributes.h"

#include <endian.h>
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

bool attributes_get(int fd, uint8_t *to, size_t *size) {
    static char names[65536];
    *size = 0;
    ssize_t length = flistxattr(fd, names, sizeof names);
    if (length <= 0) return true;
    size_t used = 0;
    for (const char *name = names; name < names + length; name += strlen(name) + 1) {
        size_t name_size = strlen(name);
        if (strncmp(name, USER, USER_SIZE) != 0 || name_size == USER_SIZE) continue;
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

bool attributes_set(int fd, const uint8_t *body, size_t size) {
    for (size_t at = 0; at < size;) {
        char name[ARCHIVE_NAME_MAX + 1];
        if (size - at < LENGTHS) return false;
        size_t name_size = get16(body + at), value_size = get16(body + at + 2);
        at += LENGTHS;
        if (name_size > ARCHIVE_NAME_MAX || size - at < name_size || size - at - name_size < value_size) return false;
        memcpy(name, body + at, name_size);
        name[name_size] = 0;
        if (strncmp(name, USER, USER_SIZE) != 0) return false;
        (void)fsetxattr(fd, name, body + at + name_size, value_size, 0);
        at += name_size + value_size;
    }
    return true;
}
