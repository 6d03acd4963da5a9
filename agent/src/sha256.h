/* SHA-256 (FIPS 180-4) of one short message: the token. Pure. */
#ifndef BOX_SHA256_H
#define BOX_SHA256_H

#include <stddef.h>
#include <stdint.h>

#define SHA256_SIZE 32u

void sha256(const uint8_t *data, size_t length, uint8_t digest[SHA256_SIZE]);

#endif
