#include "volume.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "archive.h"
#include "base.h"
#include "disks.h"

/* One of them is in use in a process. */
static uint8_t buffer[VOLUME_PIECE] __attribute__((aligned(ARCHIVE_BLOCK)));

static size_t rounded(size_t length) {
    return (length + ARCHIVE_BLOCK - 1) / ARCHIVE_BLOCK * ARCHIVE_BLOCK;
}

bool volume_open(struct volume *volume, bool writing) {
    char path[32];
    *volume = (struct volume){.fd = -1};
    if (!disk_find("transfer", path, sizeof path)) {
        errno = ENODEV;
        return false;
    }
    volume->fd = open(path, (writing ? O_WRONLY : O_RDONLY) | O_DIRECT | O_CLOEXEC);
    if (volume->fd < 0) return false;
    off_t end = lseek(volume->fd, 0, SEEK_END); /* as far as a disk reaches */
    volume->size = (uint64_t)end;
    return end >= 0;
}

uint64_t volume_position(const struct volume *volume) {
    return volume->base + volume->at;
}

/* Whole blocks only, but for the last time. */
static bool flush(struct volume *volume) {
    size_t done = 0;
    if (volume->base + volume->at > volume->size) {
        errno = ENOSPC;
        return false;
    }
    while (done < volume->at) {
        ssize_t size = pwrite(volume->fd, buffer + done, volume->at - done, (off_t)(volume->base + done));
        if (size < 0 && errno == EINTR) continue;
        if (size <= 0) return false;
        done += (size_t)size;
    }
    volume->base += volume->at;
    volume->at = 0;
    return true;
}

bool volume_write(struct volume *volume, const void *data, size_t length) {
    const uint8_t *from = data;
    while (length > 0) {
        if (volume->at == sizeof buffer && !flush(volume)) return false;
        size_t part = sizeof buffer - volume->at;
        if (part > length) part = length;
        memcpy(buffer + volume->at, from, part);
        volume->at += part;
        from += part;
        length -= part;
    }
    return true;
}

bool volume_zeros(struct volume *volume, size_t length) {
    static const uint8_t zeros[ARCHIVE_BLOCK];
    while (length > 0) {
        size_t part = length < sizeof zeros ? length : sizeof zeros;
        if (!volume_write(volume, zeros, part)) return false;
        length -= part;
    }
    return true;
}

bool volume_copy_from(struct volume *volume, int file, uint64_t offset, uint64_t length, bool *whole) {
    while (length > 0) {
        if (volume->at == sizeof buffer && !flush(volume)) return false;
        size_t part = sizeof buffer - volume->at;
        if (part > length) part = (size_t)length;
        /* Read into the place it is written from. A file open with O_DIRECT takes whole blocks only. */
        size_t asked = volume->at % ARCHIVE_BLOCK == 0 ? rounded(part) : part;
        ssize_t size = pread(file, buffer + volume->at, asked, (off_t)offset);
        if (size < 0 && errno == EINTR) continue;
        size_t have = size < 0 ? 0 : (size_t)size;
        if (have < part) {
            *whole = false;
            memset(buffer + volume->at + have, 0, part - have);
        }
        volume->at += part;
        offset += part;
        length -= part;
    }
    return true;
}

bool volume_finish(struct volume *volume) {
    return volume_zeros(volume, rounded(volume->at) - volume->at) && flush(volume) && fdatasync(volume->fd) == 0;
}

/* Moves what is left to the front, by whole blocks so that it stays aligned, and reads on. */
static bool fill(struct volume *volume) {
    size_t keep = volume->at / ARCHIVE_BLOCK * ARCHIVE_BLOCK;
    memmove(buffer, buffer + keep, volume->end - keep);
    volume->base += keep;
    volume->at -= keep;
    volume->end -= keep;
    while (volume->end < sizeof buffer) {
        off_t from = (off_t)(volume->base + volume->end);
        ssize_t size = pread(volume->fd, buffer + volume->end, sizeof buffer - volume->end, from);
        if (size < 0 && errno == EINTR) continue;
        if (size < 0) return false;
        if (size == 0) return true;
        volume->end += (size_t)size;
    }
    return true;
}

const uint8_t *volume_peek(struct volume *volume, size_t length) {
    if (volume->end - volume->at < length && !fill(volume)) return NULL;
    if (volume->end - volume->at >= length) return buffer + volume->at;
    errno = ENODATA;
    return NULL;
}

/* How many of the next `length` bytes are in the buffer, read where none is; 0 with errno where there are no more. */
static size_t at_hand(struct volume *volume, uint64_t length) {
    if (volume->at == volume->end && !fill(volume)) return 0;
    size_t part = volume->end - volume->at;
    if (part == 0) errno = ENODATA;
    return part > length ? (size_t)length : part;
}

const uint8_t *volume_some(struct volume *volume, uint64_t length, size_t *size) {
    *size = at_hand(volume, length);
    return *size > 0 ? buffer + volume->at : NULL;
}

bool volume_skip(struct volume *volume, uint64_t length) {
    while (length > 0) {
        size_t part = at_hand(volume, length);
        if (part == 0) return false;
        volume->at += part;
        length -= part;
    }
    return true;
}

static bool write_at(int file, const uint8_t *data, size_t length, uint64_t offset) {
    while (length > 0) {
        ssize_t size = pwrite(file, data, length, (off_t)offset);
        if (size < 0 && errno == EINTR) continue;
        if (size <= 0) return false;
        data += size;
        offset += (uint64_t)size;
        length -= (size_t)size;
    }
    return true;
}

/* Past the page cache where whole blocks lie at the place of whole blocks: nothing is copied by the processor then. */
static bool write_direct(int file, const uint8_t *data, size_t length, uint64_t offset) {
    size_t whole = length / ARCHIVE_BLOCK * ARCHIVE_BLOCK;
    bool aligned = ((uintptr_t)data | offset) % ARCHIVE_BLOCK == 0;
    if (aligned && whole >= ARCHIVE_LONG && fcntl(file, F_SETFL, O_DIRECT) == 0) {
        bool done = write_at(file, data, whole, offset);
        (void)fcntl(file, F_SETFL, 0);
        if (!done) return false;
        data += whole;
        offset += whole;
        length -= whole;
    }
    return write_at(file, data, length, offset);
}

bool volume_copy_to(struct volume *volume, int file, uint64_t offset, uint64_t length) {
    while (length > 0) {
        size_t part = at_hand(volume, length);
        if (part == 0) return false;
        if (!write_direct(file, buffer + volume->at, part, offset)) return false;
        volume->at += part;
        offset += part;
        length -= part;
    }
    return true;
}
