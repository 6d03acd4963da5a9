#include "frame.h"

#include <string.h>

uint16_t load16(const uint8_t *at) {
    return (uint16_t)((unsigned)at[0] << 8 | at[1]);
}

uint32_t load32(const uint8_t *at) {
    return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

uint64_t load64(const uint8_t *at) {
    return (uint64_t)load32(at) << 32 | load32(at + 4);
}

void store32(uint8_t *at, uint32_t value) {
    at[0] = (uint8_t)(value >> 24);
    at[1] = (uint8_t)(value >> 16);
    at[2] = (uint8_t)(value >> 8);
    at[3] = (uint8_t)value;
}

void frame_header(uint8_t *at, uint8_t type, uint32_t stream, uint32_t length) {
    at[0] = type;
    at[1] = 0;
    at[2] = (uint8_t)(FRAME_MAGIC >> 8);
    at[3] = (uint8_t)(FRAME_MAGIC & 0xFF);
    store32(at + 4, stream);
    store32(at + 8, length);
}

void frame_reset(struct frame_parser *parser) {
    parser->fill = 0;
    parser->zeros = 0;
    parser->lost = false;
    parser->taken = false;
}

static void take(struct frame_parser *parser, struct span *in, size_t want) {
    size_t size = want - parser->fill;
    if (size > in->length) size = in->length;
    memcpy(parser->bytes + parser->fill, in->data, size);
    parser->fill += (uint32_t)size;
    in->data += size;
    in->length -= size;
}

/* Discards up to and including FRAME_ZERO_RUN zeros in a row. False when `in` ran out first. */
static bool resynchronise(struct frame_parser *parser, struct span *in) {
    while (in->length > 0) {
        parser->zeros = *in->data == 0 ? parser->zeros + 1 : 0;
        in->data++;
        in->length--;
        if (parser->zeros >= FRAME_ZERO_RUN) {
            frame_reset(parser);
            return true;
        }
    }
    return false;
}

static enum frame_result lose(struct frame_parser *parser) {
    /* Zeros at the end of what was taken for a frame may be the beginning of the run. */
    uint32_t zeros = 0;
    while (zeros < parser->fill && parser->bytes[parser->fill - 1 - zeros] == 0) zeros++;
    parser->garbled++;
    parser->fill = 0;
    parser->taken = false;
    parser->lost = zeros < FRAME_ZERO_RUN;
    parser->zeros = zeros;
    return FRAME_GARBLED;
}

enum frame_result frame_next(struct frame_parser *parser, struct span *in, struct frame *out) {
    if (parser->taken) frame_reset(parser);
    if (parser->lost && !resynchronise(parser, in)) return FRAME_NEED_MORE;
    if (parser->fill == 0) {
        while (in->length > 0 && *in->data == 0) {
            in->data++;
            in->length--;
        }
    }
    if (parser->fill < FRAME_HEADER) take(parser, in, FRAME_HEADER);
    if (parser->fill < FRAME_HEADER) return FRAME_NEED_MORE;

    uint32_t length = load32(parser->bytes + 8);
    bool sound = parser->bytes[1] == 0 && load16(parser->bytes + 2) == FRAME_MAGIC;
    if (!sound || length > FRAME_PAYLOAD_MAX) return lose(parser);

    size_t whole = (size_t)FRAME_HEADER + length + 1;
    if (parser->fill < whole) take(parser, in, whole);
    if (parser->fill < whole) return FRAME_NEED_MORE;
    if (parser->bytes[whole - 1] != FRAME_END) return lose(parser);

    parser->taken = true;
    out->type = parser->bytes[0];
    out->stream = load32(parser->bytes + 4);
    out->payload = parser->bytes + FRAME_HEADER;
    out->length = length;
    return FRAME_READY;
}
