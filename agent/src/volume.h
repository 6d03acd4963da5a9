/* The disk that an archive is on, past the page cache: written or read from its beginning, in large pieces. */
#ifndef BOX_VOLUME_H
#define BOX_VOLUME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define VOLUME_PIECE (1u << 20)

struct volume {
    int fd;
    uint64_t base, size; /* where on the disk the buffer begins; how long the disk is */
    size_t at, end;      /* of the buffer: how far it is used or filled, and what was read */
};

/* Finds the disk with the serial `transfer` and opens it. False with errno. */
bool volume_open(struct volume *volume, bool writing);

uint64_t volume_position(const struct volume *volume);

/* False with errno, ENOSPC when the disk is too short. */
bool volume_write(struct volume *volume, const void *data, size_t length);
bool volume_zeros(struct volume *volume, size_t length);
/* `length` bytes of `file` from `offset` on. Where the file has fewer, zeros take their place and *whole is false. A file that was
 * opened with O_DIRECT needs an offset and a position that are those of a block. */
bool volume_copy_from(struct volume *volume, int file, uint64_t offset, uint64_t length, bool *whole);
bool volume_finish(struct volume *volume);

/* The next `length` bytes (at most VOLUME_PIECE / 2) in one piece, which are not used up by it; NULL when the disk has
 * fewer, or with an error. */
const uint8_t *volume_peek(struct volume *volume, size_t length);
/* What of the next `length` bytes is at hand, at least one; NULL with errno where there are no more. */
const uint8_t *volume_some(struct volume *volume, uint64_t length, size_t *size);
bool volume_skip(struct volume *volume, uint64_t length);
/* The next `length` bytes to `file` at `offset`. False with errno. */
bool volume_copy_to(struct volume *volume, int file, uint64_t offset, uint64_t length);

#endif
