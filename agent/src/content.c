#include "content.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#define PIECE (128 << 10)

static uint8_t pieces[2][PIECE];

static bool read_all(int fd, uint8_t *to, size_t length, off_t start) {
    while (length > 0) {
        ssize_t size = pread(fd, to, length, start);
        if (size < 0 && errno == EINTR) continue;
        if (size <= 0) return false;
        to += size;
        start += size;
        length -= (size_t)size;
    }
    return true;
}

/* Where the next byte is that is in no hole, `end` where none is. */
static off_t data_from(int fd, off_t start, off_t end) {
    off_t found = lseek(fd, start, SEEK_DATA);
    if (found < 0) return errno == ENXIO ? end : start;
    return found < end ? found : end;
}

static size_t piece(off_t start, off_t end) {
    return end - start < PIECE ? (size_t)(end - start) : (size_t)PIECE;
}

bool content_same(int one, int other, off_t size) {
    for (off_t at = 0; at < size;) {
        off_t first = data_from(one, at, size), second = data_from(other, at, size);
        at = first < second ? first : second;
        size_t length = piece(at, size);
        if (!read_all(one, pieces[0], length, at) || !read_all(other, pieces[1], length, at)) return false;
        if (memcmp(pieces[0], pieces[1], length) != 0) return false;
        at += (off_t)length;
    }
    return true;
}

bool content_is_zero(int fd, off_t start, off_t end) {
    for (off_t at = data_from(fd, start, end); at < end; at = data_from(fd, at, end)) {
        size_t length = piece(at, end);
        if (!read_all(fd, pieces[0], length, at)) return false;
        if (pieces[0][0] != 0 || memcmp(pieces[0], pieces[0] + 1, length - 1) != 0) return false;
        at += (off_t)length;
    }
    return true;
}

bool content_is(int fd, const uint8_t *data, size_t length, off_t start) {
    while (length > 0) {
        size_t part = length < PIECE ? length : (size_t)PIECE;
        if (!read_all(fd, pieces[0], part, start) || memcmp(pieces[0], data, part) != 0) return false;
        data += part;
        start += (off_t)part;
        length -= part;
    }
    return true;
}
