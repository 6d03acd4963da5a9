/* Extended attributes as the body of an archive's record: those of users, or with `all` every one. */
#ifndef BOX_ATTRIBUTES_H
#define BOX_ATTRIBUTES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Those of an open file in the order of their names, at most ARCHIVE_BODY_MAX bytes to `to`. False: they do not fit,
 * *size is 0. */
bool attributes_get(int fd, uint8_t *to, size_t *size, bool all);

/* False when the body makes no sense, or with ENOSPC. What the file system does not take otherwise is lost. */
bool attributes_set(int fd, const uint8_t *body, size_t size, bool all);

/* Removes those that the body does not have. */
void attributes_trim(int fd, const uint8_t *body, size_t size);

/* Whether two open files have the same ones. */
bool attributes_same(int one, int other);

#endif
