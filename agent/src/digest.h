/* A fingerprint of what an entry is, by which another one is known to be the same.
 *
 * It finds differences that happen. Whoever makes two files with one fingerprint on purpose gains nothing: it says what a
 * fork claims to have begun with, and a fork may claim anything. SHA-256 (sha256.h) would take some 34 times the CPU of
 * each byte, for every file a fork has changed. */
#ifndef BOX_DIGEST_H
#define BOX_DIGEST_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>

#include "archive.h"

/* Of attributes and content of a file, attributes of a directory, where a link leads, the number of a device. `name` is
 * NULL for the directory behind `at` itself. False: it cannot be read, and is like nothing else. */
bool digest_of(int at, const char *name, const struct stat *facts, uint8_t digest[ARCHIVE_DIGEST]);

#endif
