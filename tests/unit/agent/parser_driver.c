/* Drives the agent's pure parsers on the host, under sanitizers.
 *   parser_driver fuzz SECONDS SEED   random and mutated frames in random pieces; aborts on a broken promise
 *   parser_driver records             prints every record of the archive, or archive of changes, on standard input
 *   parser_driver parse               prints every frame found on standard input */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "accounts.h"
#include "archive.h"
#include "frame.h"
#include "request.h"
#include "sha256.h"

#define INPUT_MAX (4u * FRAME_MAX)

static uint64_t state;

static uint32_t dice(uint32_t below) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return below == 0 ? 0 : (uint32_t)(state >> 16) % below;
}

static void promise(bool kept, const char *what) {
    if (kept) return;
    fprintf(stderr, "broken promise: %s\n", what);
    abort();
}

/* An exact-sized heap copy, so that a read one byte too far is seen. */
static uint8_t *copy_of(const uint8_t *data, size_t length) {
    uint8_t *copy = malloc(length > 0 ? length : 1);
    if (copy == NULL) abort();
    if (length > 0) memcpy(copy, data, length);
    return copy;
}

static void parse_bodies(const uint8_t *data, size_t length) {
    uint8_t *body = copy_of(data, length);
    struct hello hello;
    struct order order;
    (void)hello_parse(body, length, &hello);
    for (int kind = 0; kind < 18; kind++) {
        if (!order_parse((enum request_kind)kind, body, length, &order)) continue;
        if (order.path != NULL) promise(strlen(order.path) < length, "a path inside the body");
        if (kind != REQUEST_EXEC) continue;
        const char *at = order.strings;
        for (uint32_t i = 0; i < order.argc + order.envc; i++) at += strlen(at) + 1;
        promise(at == (const char *)body + length, "strings fill the body");
    }
    free(body);
}

static void find_accounts(const uint8_t *data, size_t length) {
    static const char *const wanted[] = {"", "root", "a", "1000", "a:b", ":", "4294967295", "0:0"};
    struct account account;
    uint8_t *text = copy_of(data, length);
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        size_t half = length / 2;
        (void)account_find(wanted[i], (char *)text, half, (char *)text + half, length - half, &account);
        promise(memchr(account.home, 0, sizeof account.home) != NULL, "a home that ends");
        promise(account.group_count <= GROUPS_MAX, "a bounded number of groups");
    }
    free(text);
}

static void parse_record(const uint8_t *data, size_t length) {
    struct archive_record record;
    size_t used = 0;
    uint8_t *copy = copy_of(data, length);
    enum archive_result result = archive_parse(copy, length, &record, &used);
    promise(result != ARCHIVE_READY || used <= length, "a record inside what there is");
    promise(result != ARCHIVE_NEED_MORE || used > length, "more is needed than there is");
    if (result == ARCHIVE_READY) {
        promise(record.name_size <= ARCHIVE_NAME_MAX && record.body_size <= ARCHIVE_BODY_MAX, "bounded lengths");
        promise((const uint8_t *)record.name >= copy && record.body + record.body_size <= copy + length, "text inside");
        promise(memchr(record.name, '/', record.name_size) == NULL, "a single name");
        promise(record.size <= ARCHIVE_SIZE_MAX && record.length <= ARCHIVE_SIZE_MAX, "bounded sizes");
    }
    free(copy);
}

/* Mostly a record, with a few bytes changed and sometimes cut. */
static void parse_records(void) {
    static const char *const names[] = {"a", "..", ".", "", "a/b", "name", "..."};
    uint8_t data[ARCHIVE_RECORD + 64] = {0};
    const char *name = names[dice(sizeof names / sizeof *names)];
    struct archive_record record = {.kind = (enum archive_kind)dice(15), .name_size = strlen(name)};
    record.body_size = dice(40);
    record.size = dice(1000);
    record.change = dice(130);
    archive_put(data, &record);
    memcpy(data + ARCHIVE_RECORD, name, record.name_size);
    for (size_t i = ARCHIVE_RECORD + record.name_size; i < sizeof data; i++) data[i] = (uint8_t)dice(256);
    for (uint32_t changes = dice(3); changes > 0; changes--) data[dice(sizeof data)] = (uint8_t)dice(256);
    parse_record(data, dice(4) == 0 ? dice(sizeof data) : sizeof data);
}

static size_t add_frame(uint8_t *at, uint8_t type, const uint8_t *payload, uint32_t length) {
    frame_header(at, type, dice(5), length);
    if (length > 0) memcpy(at + FRAME_HEADER, payload, length);
    at[FRAME_HEADER + length] = FRAME_END;
    return FRAME_HEADER + length + 1;
}

static uint32_t random_payload(uint8_t *payload) {
    static const char lines[] = "root:x:0:0:r:/root:/bin/sh\na:x:1000:1000::/:\nb:x:7:a,root\n:::::\n";
    uint32_t length = dice(20) == 0 ? dice(FRAME_PAYLOAD_MAX + 1) : dice(300);
    uint32_t flavour = dice(4);
    for (uint32_t i = 0; i < length; i++) {
        if (flavour == 0) payload[i] = (uint8_t)dice(256);
        else if (flavour == 1) payload[i] = (uint8_t)(dice(4) == 0 ? 'a' : 0);
        else payload[i] = (uint8_t)lines[(i + flavour) % (sizeof lines - 1)];
    }
    if (flavour == 1 && length > 21) {
        payload[0] = REQUEST_EXEC;
        payload[16] = (uint8_t)dice(9);
        payload[20] = (uint8_t)dice(9);
    }
    return length;
}

static size_t random_input(uint8_t *input) {
    static uint8_t payload[FRAME_MAX];
    size_t size = 0;
    for (uint32_t frames = dice(6); frames > 0 && size < 2 * FRAME_MAX; frames--) {
        uint32_t length = random_payload(payload);
        parse_bodies(payload, length);
        find_accounts(payload, length);
        parse_records();
        size += add_frame(input + size, (uint8_t)(1 + dice(9)), payload, length);
        if (dice(3) == 0) {
            uint32_t zeros = dice(100);
            memset(input + size, 0, zeros);
            size += zeros;
        }
    }
    for (uint32_t changes = dice(4); changes > 0 && size > 0; changes--) input[dice((uint32_t)size)] = (uint8_t)dice(256);
    if (dice(3) == 0 && size > 0) size -= dice((uint32_t)size);
    return size;
}

static void check(const struct frame_parser *parser, const struct frame *frame) {
    promise(frame->length <= FRAME_PAYLOAD_MAX, "a bounded payload");
    promise(frame->type != 0, "a type");
    promise(frame->payload == parser->bytes + FRAME_HEADER, "a payload inside the parser");
}

/* Feeds `size` bytes in random pieces; the number of frames, and the last one's type in *type. */
static size_t feed(struct frame_parser *parser, const uint8_t *input, size_t size, uint8_t *type) {
    size_t frames = 0;
    while (size > 0) {
        size_t piece = 1 + dice(dice(2) == 0 ? 16 : 5000);
        if (piece > size) piece = size;
        uint8_t *copy = copy_of(input, piece);
        struct span in = {copy, piece};
        struct frame frame;
        for (;;) {
            enum frame_result result = frame_next(parser, &in, &frame);
            promise(in.length <= piece && in.data + in.length == copy + piece, "a span that only shrinks");
            if (result == FRAME_NEED_MORE) break;
            if (result == FRAME_GARBLED) continue;
            check(parser, &frame);
            frames++;
            *type = frame.type;
        }
        promise(in.length == 0, "nothing left when more is needed");
        free(copy);
        input += piece;
        size -= piece;
    }
    return frames;
}

static int fuzz(double seconds) {
    static struct frame_parser parser;
    static uint8_t input[INPUT_MAX], resync[FRAME_MAX + FRAME_ZERO_RUN];
    struct timespec began, now;
    unsigned long rounds = 0;
    clock_gettime(CLOCK_MONOTONIC, &began);
    do {
        uint8_t type = 0, last[FRAME_HEADER + 54], payload[53] = {0};
        size_t size = random_input(input);
        (void)feed(&parser, input, size, &type);
        if (dice(2) == 0) {
            /* Whatever came before: zeros, then hello, and hello is understood. */
            payload[16 + 1] = payload[16 + 3] = 1;
            size_t length = add_frame(last, TO_GUEST_HELLO, payload, sizeof payload);
            type = 0;
            (void)feed(&parser, resync, sizeof resync, &type);
            promise(type == 0, "a frame cut short is void");
            promise(feed(&parser, last, length, &type) == 1 && type == TO_GUEST_HELLO, "hello after zeros");
        }
        rounds++;
        clock_gettime(CLOCK_MONOTONIC, &now);
    } while ((double)(now.tv_sec - began.tv_sec) + (double)(now.tv_nsec - began.tv_nsec) / 1e9 < seconds);
    printf("%lu rounds, %u garbled\n", rounds, parser.garbled);
    return 0;
}

static int parse(void) {
    static struct frame_parser parser;
    static uint8_t chunk[4096];
    struct frame frame;
    ssize_t size;
    while ((size = read(STDIN_FILENO, chunk, sizeof chunk)) > 0) {
        struct span in = {chunk, (size_t)size};
        for (;;) {
            enum frame_result result = frame_next(&parser, &in, &frame);
            if (result == FRAME_NEED_MORE) break;
            if (result == FRAME_GARBLED) {
                puts("garbled");
                continue;
            }
            uint8_t digest[SHA256_SIZE];
            sha256(frame.payload, frame.length, digest);
            printf("%u %u %u ", frame.type, frame.stream, frame.length);
            for (size_t i = 0; i < sizeof digest; i++) printf("%02x", digest[i]);
            puts("");
        }
    }
    return 0;
}

static int records(void) {
    static uint8_t all[1u << 22];
    size_t have = 0, at = ARCHIVE_HEADER, used;
    for (ssize_t size; (size = read(STDIN_FILENO, all + have, sizeof all - have)) > 0;) have += (size_t)size;
    if (have < ARCHIVE_HEADER) return 1;
    bool changes = archive_begins(all, true);
    if (!changes && !archive_begins(all, false)) return 1;
    for (;;) {
        struct archive_record record;
        if (archive_parse(all + at, have - at, &record, &used) != ARCHIVE_READY) return 1;
        if (!archive_fits(&record, changes)) return 1;
        printf("%u %d %o %llu %lld %u %u %u %u %llu ", record.change, (int)record.kind, record.mode, (unsigned long long)record.size,
               (long long)record.seconds, record.nanoseconds, record.uid, record.gid, record.number,
               (unsigned long long)record.length);
        for (size_t i = 0; i < record.name_size + record.body_size; i++) printf("%02x", (uint8_t)record.name[i]);
        uint8_t head[ARCHIVE_RECORD];
        archive_put(head, &record);
        puts(memcmp(head, all + at, sizeof head) == 0 ? " same" : " another");
        if (record.kind == ARCHIVE_END) return 0;
        at += used;
        at += archive_padding(at, record.length);
        if (record.kind == ARCHIVE_DATA) at += record.length;
        at += archive_padding(at, 0);
        if (at > have) return 1;
    }
}

int main(int argc, char **argv) {
    if (argc == 2 && strcmp(argv[1], "parse") == 0) return parse();
    if (argc == 2 && strcmp(argv[1], "records") == 0) return records();
    if (argc != 4 || strcmp(argv[1], "fuzz") != 0) return 2;
    state = strtoull(argv[3], NULL, 10) * 2654435769u + 88172645463325252u;
    return fuzz(strtod(argv[2], NULL));
}
