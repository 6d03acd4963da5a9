/* What is in files, compared without reading holes. */
#ifndef BOX_CONTENT_H
#define BOX_CONTENT_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/* Whether two open files have the same first `size` bytes. One that cannot be read has not. */
bool content_same(int one, int other, off_t size);

/* Whether there are only zeros from `start` to `end`. */
bool content_is_zero(int fd, off_t start, off_t end);

/* Whether these bytes are at `start`. */
bool content_is(int fd, const uint8_t *data, size_t length, off_t start);

#endif
