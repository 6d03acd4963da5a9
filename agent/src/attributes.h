/* Extended attributes of users, as the body of an archive's record. */
#ifndef BOX_ATTRIBUTES_H
#define BOX_ATTRIBUTES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Those of an open file, at most ARCHIVE_BODY_MAX bytes to `to`. False: they do not fit, *size is 0. */
bool attributes_get(int fd, uint8_t *to, size_t *size);

/* False when the body makes no sense. What the file system does not take is lost. */
bool attributes_set(int fd, const uint8_t *body, size_t size);

#endif
