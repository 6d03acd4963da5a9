/* Bodies of requests, parsed in place: every pointer points into the body. Pure, for the same reason as frame.h. */
#ifndef BOX_REQUEST_H
#define BOX_REQUEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define BODY_MAX (8u << 20)
#define STRINGS_MAX 400000u
#define TOKEN_SIZE 32u
#define NONCE_SIZE 16u
#define STDIN_WINDOW 65536u
#define PROTOCOL_VERSION 1u

enum request_kind {
    REQUEST_PING = 1,
    REQUEST_EXEC = 2,
    REQUEST_READ = 3,
    REQUEST_WRITE = 4,
    REQUEST_RESIZE = 5,
    REQUEST_CLOCK = 6,
    REQUEST_RESEED = 7,
    REQUEST_ROTATE = 8,
    REQUEST_SHUTDOWN = 9,
    REQUEST_STATS = 10,
    REQUEST_MOUNT = 11,
    REQUEST_NETWORK = 12,
    REQUEST_EXPORT = 13,
    REQUEST_IMPORT = 14,
    REQUEST_CHANGES = 15,
    REQUEST_MERGE = 16,
    REQUEST_EXPORT_ROOT = 17,
};

struct hello {
    const uint8_t *nonce;
    uint16_t lowest, highest;
    bool first;
    const uint8_t *token;
};

/* Flags of CHANGES, and of MERGE. */
#define CHANGES_WITH_DATA 1u
#define MERGE_THEIRS 1u
#define MERGE_DRY 2u

/* What a command is, whether a program or one of the file operations. Strings end with a zero byte. */
struct order {
    enum request_kind kind;
    uint32_t window[2];
    /* EXEC */
    uint32_t timeout_ms;
    bool wants_stdin;
    uint32_t argc, envc;
    const char *cwd, *user;
    const char *strings;  /* argc + envc of them, one behind the other */
    size_t strings_size;
    /* READ, WRITE */
    const char *path;
    uint32_t mode, uid, gid;
    uint8_t flags; /* CHANGES, MERGE */
    uint64_t size; /* WRITE: bytes to come; RESIZE: bytes of the device */
    const char *device; /* RESIZE: not from the body; whoever starts it fills it in */
};

bool hello_parse(const uint8_t *payload, size_t length, struct hello *out);

/* EXEC, READ, WRITE, RESIZE, EXPORT, IMPORT, CHANGES, MERGE and EXPORT_ROOT. False: malformed. */
bool order_parse(enum request_kind kind, const uint8_t *body, size_t length, struct order *out);

#endif
