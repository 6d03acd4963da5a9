#include "digest.h"

#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "attributes.h"
#include "base.h"

#define PIECE (128u << 10)
#define OPEN_ENTRY (O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_NOATIME | O_CLOEXEC)

/* Two lanes of a multiplying hash over eight bytes at a time; the multipliers are those of xxHash64. */
struct state {
    uint64_t one, other;
};

static uint64_t turned(uint64_t value, unsigned by) {
    return value << by | value >> (64 - by);
}

static void take(struct state *state, uint64_t word) {
    state->one = turned(state->one ^ (word * UINT64_C(0x9E3779B185EBCA87)), 31) * UINT64_C(0xC2B2AE3D27D4EB4F);
    state->other = turned(state->other + (word ^ state->one), 27) * UINT64_C(0x165667B19E3779F9) + word;
}

/* The length too, so that nothing runs into what follows. */
static void add(struct state *state, const uint8_t *data, size_t length) {
    take(state, length);
    for (; length >= 8; data += 8, length -= 8) {
        uint64_t word;
        memcpy(&word, data, 8);
        take(state, word);
    }
    uint64_t last = 0;
    memcpy(&last, data, length);
    take(state, last);
}

static bool is_zero(const uint8_t *data, size_t length) {
    return data[0] == 0 && memcmp(data, data + 1, length - 1) == 0;
}

/* Pieces that are all zero do not count, whether they are holes or not. */
static bool content(struct state *state, int fd, uint64_t size) {
    static uint8_t piece[PIECE];
    for (uint64_t at = 0; at < size;) {
        off_t data = lseek(fd, (off_t)at, SEEK_DATA);
        if (data < 0 && errno == ENXIO) return true;
        if (data > (off_t)at) at = (uint64_t)data / PIECE * PIECE;
        size_t want = size - at < PIECE ? (size_t)(size - at) : PIECE, have = 0;
        while (have < want) {
            ssize_t got = pread(fd, piece + have, want - have, (off_t)(at + have));
            if (got < 0 && errno == EINTR) continue;
            if (got <= 0) return false;
            have += (size_t)got;
        }
        if (!is_zero(piece, want)) {
            take(state, at);
            add(state, piece, want);
        }
        at += want;
    }
    return true;
}

static bool opened(struct state *state, int at, const char *name, const struct stat *facts) {
    static uint8_t body[ARCHIVE_BODY_MAX + 1];
    size_t size;
    bool is_folder = S_ISDIR(facts->st_mode);
    AUTO_CLOSE int fd = name == NULL ? dup(at) : openat(at, name, OPEN_ENTRY | (is_folder ? O_DIRECTORY : 0));
    if (fd < 0) return false;
    (void)attributes_get(fd, body, &size, true);
    add(state, body, size);
    return is_folder || content(state, fd, (uint64_t)facts->st_size);
}

bool digest_of(int at, const char *name, const struct stat *facts, uint8_t digest[ARCHIVE_DIGEST]) {
    static uint8_t target[ARCHIVE_TARGET_MAX + 1];
    struct state state = {UINT64_C(0x27D4EB2F165667C5), UINT64_C(0x85EBCA77C2B2AE63)};
    bool read = true;
    if (S_ISREG(facts->st_mode) || S_ISDIR(facts->st_mode)) {
        read = opened(&state, at, name, facts);
    } else if (S_ISLNK(facts->st_mode)) {
        ssize_t size = readlinkat(at, name, (char *)target, sizeof target);
        read = size >= 0;
        if (read) add(&state, target, (size_t)size);
    } else {
        take(&state, facts->st_rdev);
    }
    uint64_t words[2] = {htole64(state.one), htole64(state.other)};
    memcpy(digest, words, sizeof words);
    if (!read) memset(digest, 0, ARCHIVE_DIGEST);
    return read;
}
