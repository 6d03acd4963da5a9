#include "request.h"

#include <string.h>

#include "frame.h"

#define EXEC_FIXED 21u
#define WRITE_FIXED 20u

bool hello_parse(const uint8_t *payload, size_t length, struct hello *out) {
    if (length != NONCE_SIZE + 5 + TOKEN_SIZE) return false;
    out->nonce = payload;
    out->lowest = load16(payload + NONCE_SIZE);
    out->highest = load16(payload + NONCE_SIZE + 2);
    out->first = (payload[NONCE_SIZE + 4] & 1) != 0;
    out->token = payload + NONCE_SIZE + 5;
    return out->lowest <= out->highest;
}

/* The string at the front of [*at, end), and *at moved behind it; NULL when it has no end. */
static const char *string(const char **at, const char *end) {
    const char *found = *at;
    const char *zero = found < end ? memchr(found, 0, (size_t)(end - found)) : NULL;
    if (zero == NULL) return NULL;
    *at = zero + 1;
    return found;
}

static bool exec_parse(const uint8_t *body, size_t length, struct order *out) {
    if (length < EXEC_FIXED) return false;
    out->timeout_ms = load32(body);
    out->window[0] = load32(body + 4);
    out->window[1] = load32(body + 8);
    out->wants_stdin = (body[12] & 1) != 0;
    out->argc = load32(body + 13);
    out->envc = load32(body + 17);
    if (out->argc == 0 || out->argc > STRINGS_MAX || out->envc > STRINGS_MAX) return false;

    const char *at = (const char *)body + EXEC_FIXED;
    const char *end = (const char *)body + length;
    out->cwd = string(&at, end);
    out->user = out->cwd != NULL ? string(&at, end) : NULL;
    if (out->user == NULL) return false;
    out->strings = at;
    out->strings_size = (size_t)(end - at);
    for (uint32_t left = out->argc + out->envc; left > 0; left--) {
        if (string(&at, end) == NULL) return false;
    }
    return at == end;
}

/* A path is the rest of the body: absolute, ended by the only zero byte. */
static bool path_parse(const uint8_t *body, size_t length, size_t fixed, struct order *out) {
    if (length < fixed + 2) return false;
    const char *at = (const char *)body + fixed;
    const char *end = (const char *)body + length;
    out->path = string(&at, end);
    return out->path != NULL && at == end && out->path[0] == '/';
}

bool order_parse(enum request_kind kind, const uint8_t *body, size_t length, struct order *out) {
    memset(out, 0, sizeof *out);
    out->kind = kind;
    out->window[0] = out->window[1] = 4096;
    switch (kind) {
    case REQUEST_EXEC:
        return exec_parse(body, length, out);
    case REQUEST_READ:
        if (!path_parse(body, length, 4, out)) return false;
        out->window[0] = load32(body);
        return true;
    case REQUEST_WRITE:
        if (!path_parse(body, length, WRITE_FIXED, out)) return false;
        out->mode = load32(body) & 07777;
        out->uid = load32(body + 4);
        out->gid = load32(body + 8);
        out->size = load64(body + 12);
        out->wants_stdin = true;
        return true;
    case REQUEST_RESIZE:
        if (length != 8) return false;
        out->size = load64(body);
        return true;
    case REQUEST_EXPORT:
    case REQUEST_IMPORT:
    case REQUEST_EXPORT_ROOT:
        return length == 0;
    case REQUEST_CHANGES:
    case REQUEST_MERGE:
        if (length != 5) return false;
        out->window[0] = load32(body);
        out->flags = body[4];
        return out->flags <= (kind == REQUEST_MERGE ? MERGE_THEIRS | MERGE_DRY : CHANGES_WITH_DATA);
    case REQUEST_PING:
    case REQUEST_CLOCK:
    case REQUEST_RESEED:
    case REQUEST_ROTATE:
    case REQUEST_SHUTDOWN:
    case REQUEST_STATS:
    case REQUEST_MOUNT:
    case REQUEST_NETWORK:
    default:
        return false;
    }
}
