/* Frames of PROTOCOL.md: the parser that faces whatever the host's end of the port sends.
 * Pure: no system calls, no allocation, so that it can be fuzzed on the host. */
#ifndef BOX_FRAME_H
#define BOX_FRAME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define FRAME_HEADER 12u
#define FRAME_MAX 32768u
#define FRAME_PAYLOAD_MAX (FRAME_MAX - FRAME_HEADER - 1u)
#define FRAME_MAGIC 0xB0C5u
#define FRAME_END 0x5Au
#define FRAME_ZERO_RUN 64u

enum to_guest {
    TO_GUEST_HELLO = 0x01,
    TO_GUEST_REQUEST = 0x02,
    TO_GUEST_BODY = 0x03,
    TO_GUEST_STDIN = 0x04,
    TO_GUEST_STDIN_END = 0x05,
    TO_GUEST_CREDIT = 0x06,
    TO_GUEST_KILL = 0x07,
};

enum to_host {
    TO_HOST_HELLO_ACK = 0x81,
    TO_HOST_REFUSED = 0x82,
    TO_HOST_REPLY = 0x83,
    TO_HOST_STDOUT = 0x84,
    TO_HOST_STDERR = 0x85,
    TO_HOST_CREDIT = 0x86,
    TO_HOST_EXIT = 0x87,
};

/* `payload` points into the parser and is valid until the next call; the receiver may wipe it. */
struct frame {
    uint8_t type;
    uint32_t stream;
    uint8_t *payload;
    uint32_t length;
};

struct frame_parser {
    uint8_t bytes[FRAME_MAX];
    uint32_t fill;
    uint32_t zeros;    /* in a row, while lost */
    bool lost;         /* discarding until a run of zeros */
    bool taken;        /* bytes[] holds a frame that was already handed out */
    uint32_t garbled;  /* frames that were void, for statistics */
};

/* Bytes still to be parsed. */
struct span {
    const uint8_t *data;
    size_t length;
};

enum frame_result { FRAME_NEED_MORE, FRAME_READY, FRAME_GARBLED };

/* Takes bytes from the front of `in` until one frame is complete or `in` is used up. FRAME_GARBLED is returned once
 * for each loss of synchronisation; call again to go on. */
enum frame_result frame_next(struct frame_parser *parser, struct span *in, struct frame *out);

/* Forget a frame begun by a host that has gone. */
void frame_reset(struct frame_parser *parser);

/* Writes a header for `length` payload bytes to `at` (FRAME_HEADER bytes). The caller adds the payload and FRAME_END. */
void frame_header(uint8_t *at, uint8_t type, uint32_t stream, uint32_t length);

uint16_t load16(const uint8_t *at);
uint32_t load32(const uint8_t *at);
uint64_t load64(const uint8_t *at);
void store32(uint8_t *at, uint32_t value);

#endif
