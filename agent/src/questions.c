#include "questions.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/random.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/sysinfo.h>
#include <time.h>

#include "base.h"
#include "network.h"
#include "power.h"
#include "resolver.h"

#define SEED_MIN 16u
#define SEED_MAX 512u
#define PING_MAX 64u

static void reply(struct session *session, const struct stream *stream, enum reply_code code, const void *body,
                  size_t length) {
    uint8_t payload[1 + 2048];
    payload[0] = (uint8_t)code;
    if (length > sizeof payload - 1) length = sizeof payload - 1;
    if (length > 0) memcpy(payload + 1, body, length);
    port_frame(&session->port, TO_HOST_REPLY, stream->id, payload, length + 1);
}

static void done_or(struct session *session, const struct stream *stream, int error) {
    const char *reason = error != 0 ? strerror(error) : "";
    reply(session, stream, error != 0 ? REPLY_FAILED : REPLY_DONE, reason, strlen(reason));
}

/* random(4): the bytes are credited as entropy, and the generator is keyed anew from the pool. */
static int reseed(const uint8_t *seed, size_t length) {
    union {
        struct rand_pool_info header;
        uint8_t bytes[sizeof(struct rand_pool_info) + SEED_MAX];
    } pool = {.header = {.entropy_count = (int)length * 8, .buf_size = (int)length}};
    memcpy(pool.bytes + sizeof(struct rand_pool_info), seed, length);
    AUTO_CLOSE int device = open("/dev/urandom", O_WRONLY | O_CLOEXEC);
    int error = device < 0 ? errno : 0;
    if (error == 0 && ioctl(device, RNDADDENTROPY, &pool) != 0) error = errno;
    if (error == 0 && ioctl(device, RNDRESEEDCRNG) != 0) error = errno;
    explicit_bzero(&pool, sizeof pool);
    return error;
}

static int set_clock(const uint8_t *body) {
    uint64_t ns = load64(body);
    struct timespec time = {.tv_sec = (time_t)(ns / 1000000000u), .tv_nsec = (long)(ns % 1000000000u)};
    return clock_settime(CLOCK_REALTIME, &time) == 0 ? 0 : errno;
}

static void stats(struct session *session, const struct stream *stream) {
    char lines[512];
    struct sysinfo facts = {0};
    unsigned running = 0;
    for (size_t i = 0; i < STREAMS_MAX; i++) running += session->streams.all[i].state == STREAM_RUNNING;
    (void)sysinfo(&facts);
    text(lines, sizeof lines, "uptime=%ld\nrunning=%u\nstarted=%u\ngarbled=%u\nrefused=%u\nfree_ram=%llu\nprocesses=%u\n",
         facts.uptime, running, session->streams.commands, session->parser.garbled, session->refusals,
         (unsigned long long)facts.freeram * facts.mem_unit, facts.procs);
    reply(session, stream, REPLY_DONE, lines, strlen(lines));
}

static void mount_directory(struct session *session, const struct stream *stream) {
    struct shared wanted;
    char why[256];
    if (!mount_parse(stream->body, stream->body_total, &wanted)) {
        reply(session, stream, REPLY_MALFORMED, "malformed", 9);
    } else if (!session->disks.root_ready) {
        reply(session, stream, REPLY_FAILED, session->disks.root, strlen(session->disks.root));
    } else if (!view_mount(&session->view, &wanted, why, sizeof why)) {
        reply(session, stream, REPLY_FAILED, why, strlen(why));
    } else {
        reply(session, stream, REPLY_DONE, "", 0);
    }
}

static void set_network(struct session *session, const struct stream *stream) {
    struct network wanted;
    char why[256] = "";
    if (!network_parse(stream->body, stream->body_total, &wanted)) {
        reply(session, stream, REPLY_MALFORMED, "malformed", 9);
    } else if (!network_apply(&wanted, why, sizeof why)) {
        reply(session, stream, REPLY_FAILED, why, strlen(why));
    } else {
        /* An image where this cannot be written has a network all the same; the answer says so. */
        if (session->disks.root_ready && !resolver_write(&wanted, why, sizeof why)) say("%s", why);
        reply(session, stream, REPLY_DONE, why, strlen(why));
    }
}

static bool sound(const struct stream *stream) {
    uint32_t length = stream->body_total;
    switch (stream->kind) {
    case REQUEST_PING: return length <= PING_MAX;
    case REQUEST_CLOCK: return length == 8;
    case REQUEST_RESEED: return length >= SEED_MIN && length <= SEED_MAX;
    case REQUEST_ROTATE: return length == TOKEN_SIZE;
    case REQUEST_SHUTDOWN: return length == 4;
    case REQUEST_STATS: return length == 0;
    case REQUEST_MOUNT: return length <= MOUNT_TAG_MAX + MOUNT_PATH_MAX + 5;
    case REQUEST_NETWORK: return length <= NETWORK_BODY_MAX;
    case REQUEST_EXEC:
    case REQUEST_READ:
    case REQUEST_WRITE:
    case REQUEST_RESIZE:
    case REQUEST_EXPORT:
    case REQUEST_IMPORT:
    case REQUEST_CHANGES:
    case REQUEST_MERGE:
    case REQUEST_EXPORT_ROOT:
    default: return false;
    }
}

void question_answer(struct session *session, struct stream *stream) {
    const uint8_t *body = stream->body;
    if (!sound(stream)) {
        reply(session, stream, REPLY_MALFORMED, "malformed or unknown", 20);
        return;
    }
    switch (stream->kind) {
    case REQUEST_PING:
        reply(session, stream, REPLY_DONE, body, stream->body_total);
        break;
    case REQUEST_CLOCK:
        done_or(session, stream, set_clock(body));
        break;
    case REQUEST_RESEED:
        done_or(session, stream, reseed(body, stream->body_total));
        break;
    case REQUEST_ROTATE:
        sha256(body, TOKEN_SIZE, session->token);
        done_or(session, stream, 0);
        break;
    case REQUEST_STATS:
        stats(session, stream);
        break;
    case REQUEST_MOUNT:
        mount_directory(session, stream);
        break;
    case REQUEST_NETWORK:
        set_network(session, stream);
        break;
    case REQUEST_SHUTDOWN: {
        int error = power_settle(session, load32(body));
        done_or(session, stream, error);
        power_off(session);
    }
    case REQUEST_EXEC:
    case REQUEST_READ:
    case REQUEST_WRITE:
    case REQUEST_RESIZE:
    case REQUEST_EXPORT:
    case REQUEST_IMPORT:
    case REQUEST_CHANGES:
    case REQUEST_MERGE:
    case REQUEST_EXPORT_ROOT:
    default:
        break;
    }
}
