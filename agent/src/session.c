#include "session.h"

#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <time.h>

#include "base.h"
#include "questions.h"

#define AGENT_VERSION "0.1.0"
#define CAPABILITIES "exec read write resize clock reseed rotate ping shutdown stats mount network transfer changes build"

static const uint8_t sync_mark[8] = {0x00, 'B', 'O', 'X', 'S', 'Y', 'N', 'C'};

enum refusal { REFUSED_VERSION = 1, REFUSED_TOKEN = 2, REFUSED_NO_TOKEN = 3, REFUSED_MALFORMED = 4 };

void session_end(struct session *session) {
    session->open = false;
    frame_reset(&session->parser);
    port_drop_output(&session->port);
    streams_end_session(&session->streams);
}

static void refuse(struct session *session, enum refusal code, const char *reason) {
    uint8_t payload[64];
    size_t length = strnlen(reason, sizeof payload - 1);
    payload[0] = (uint8_t)code;
    memcpy(payload + 1, reason, length);
    port_frame(&session->port, TO_HOST_REFUSED, 0, payload, length + 1);
    session->refusals++;
}

static void acknowledge(struct session *session) {
    char lines[2048], boot_id[64] = "";
    struct utsname system;
    struct timespec now;
    (void)uname(&system);
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    (void)file_text("/proc/sys/kernel/random/boot_id", boot_id, sizeof boot_id);
    long long uptime = (long long)now.tv_sec * 1000000 + now.tv_nsec / 1000;
    text(lines, sizeof lines,
         "protocol=%u\nagent=%s\nkernel=%s\nmachine=%s\nboot_id=%s\nroot=%s\ndata=%s\ncapabilities=%s\nuptime_us=%lld\n",
         PROTOCOL_VERSION, AGENT_VERSION, system.release, system.machine, boot_id, session->disks.root,
         session->disks.data, CAPABILITIES, uptime);
    port_frame(&session->port, TO_HOST_HELLO_ACK, 0, lines, strlen(lines));
}

/* No early way out: how long it takes says nothing about how much was right. */
static bool same_hash(const uint8_t *a, const uint8_t *b) {
    volatile uint8_t difference = 0;
    for (size_t i = 0; i < SHA256_SIZE; i++) difference = (uint8_t)(difference | (a[i] ^ b[i]));
    return difference == 0;
}

static void greet(struct session *session, const struct frame *frame) {
    struct hello hello;
    session_end(session);
    /* session_end forgets the parser's frame, but not the bytes: they are ours until the next frame_next. */
    if (!hello_parse(frame->payload, frame->length, &hello)) {
        port_raw(&session->port, sync_mark, sizeof sync_mark);
        if (frame->length >= NONCE_SIZE) port_raw(&session->port, frame->payload, NONCE_SIZE);
        refuse(session, REFUSED_MALFORMED, "malformed");
        return;
    }
    port_raw(&session->port, sync_mark, sizeof sync_mark);
    port_raw(&session->port, hello.nonce, NONCE_SIZE);
    if (PROTOCOL_VERSION < hello.lowest || PROTOCOL_VERSION > hello.highest) {
        refuse(session, REFUSED_VERSION, "version");
        return;
    }
    if (!session->has_token && !hello.first) {
        refuse(session, REFUSED_NO_TOKEN, "no token yet");
        return;
    }
    uint8_t hash[SHA256_SIZE];
    sha256(hello.token, TOKEN_SIZE, hash);
    if (!session->has_token) {
        memcpy(session->token, hash, sizeof hash);
        session->has_token = true;
    }
    session->open = same_hash(hash, session->token);
    explicit_bzero(hash, sizeof hash);
    if (session->open) acknowledge(session);
    else refuse(session, REFUSED_TOKEN, "wrong token");
}

static void complete(struct session *session, struct stream *stream) {
    switch (stream->kind) {
    case REQUEST_EXEC:
    case REQUEST_READ:
    case REQUEST_WRITE:
    case REQUEST_RESIZE:
    case REQUEST_EXPORT:
    case REQUEST_IMPORT:
    case REQUEST_CHANGES:
    case REQUEST_MERGE:
    case REQUEST_EXPORT_ROOT:
        if (!session->disks.root_ready)
            stream_exit(&session->streams, stream, &session->port, EXIT_REFUSED, 1, session->disks.root);
        else
            stream_start(&session->streams, stream, &session->view, session->disks.data_device, &session->port);
        break;
    case REQUEST_PING:
    case REQUEST_CLOCK:
    case REQUEST_RESEED:
    case REQUEST_ROTATE:
    case REQUEST_SHUTDOWN:
    case REQUEST_STATS:
    case REQUEST_MOUNT:
    case REQUEST_NETWORK:
    default:
        question_answer(session, stream);
        stream_release(&session->streams, stream);
        break;
    }
}

static void receive_body(struct session *session, struct stream *stream, const uint8_t *data, size_t length) {
    if (length > stream->body_total - stream->body_have) {
        stream_exit(&session->streams, stream, &session->port, EXIT_REFUSED, 1, "the request is longer than it said");
        return;
    }
    if (length > 0) memcpy(stream->body + stream->body_have, data, length);
    stream->body_have += (uint32_t)length;
    if (stream->body_have == stream->body_total) complete(session, stream);
}

static void refuse_request(struct session *session, uint32_t id, enum request_kind kind, const char *reason) {
    uint8_t payload[64] = {0};
    bool command = (kind >= REQUEST_EXEC && kind <= REQUEST_RESIZE) || (kind >= REQUEST_EXPORT && kind <= REQUEST_EXPORT_ROOT);
    size_t head = command ? 5 : 1, length = strnlen(reason, sizeof payload - 5);
    payload[0] = command ? EXIT_REFUSED : REPLY_REFUSED;
    if (command) store32(payload + 1, 1);
    memcpy(payload + head, reason, length);
    port_frame(&session->port, command ? TO_HOST_EXIT : TO_HOST_REPLY, id, payload, head + length);
}

static void request(struct session *session, const struct frame *frame) {
    if (frame->length < 5 || frame->stream == 0 || streams_find(&session->streams, frame->stream) != NULL) return;
    enum request_kind kind = (enum request_kind)frame->payload[0];
    uint32_t total = load32(frame->payload + 1);
    struct streams *streams = &session->streams;
    if (total > BODY_MAX || total > BODIES_MAX - streams->body_bytes) {
        refuse_request(session, frame->stream, kind, "the request is too long, or too many are arriving");
        return;
    }
    struct stream *stream = streams_new(streams, frame->stream);
    uint8_t *body = stream != NULL ? malloc((size_t)total + 1) : NULL;
    if (body == NULL) {
        if (stream != NULL) stream_release(streams, stream);
        refuse_request(session, frame->stream, kind, "too many commands at once");
        return;
    }
    stream->kind = kind;
    stream->body = body;
    stream->body_total = total;
    streams->body_bytes += total;
    receive_body(session, stream, frame->payload + 5, frame->length - 5);
}

static void credit(struct stream *stream, const struct frame *frame) {
    if (frame->length != 5 || frame->payload[0] < 1 || frame->payload[0] > 2) return;
    uint32_t *have = &stream->credit[frame->payload[0] - 1];
    uint32_t more = load32(frame->payload + 1);
    *have = more > UINT32_MAX - *have ? UINT32_MAX : *have + more;
}

static void end_or_signal(struct session *session, struct stream *stream, const struct frame *frame) {
    if (frame->length != 2) return;
    bool abandon = (frame->payload[1] & 1) != 0;
    if (stream->state == STREAM_RUNNING && abandon && stream->command.pid > 0) {
        stream_forget(stream); /* its EXIT comes when it is dead */
    } else if (stream->state == STREAM_BODY || abandon) {
        stream_exit(&session->streams, stream, &session->port, EXIT_REFUSED, 0, "abandoned");
    } else if (frame->payload[0] >= 1 && frame->payload[0] <= 64) {
        command_signal(&stream->command, frame->payload[0]);
    }
}

static void handle(struct session *session, const struct frame *frame) {
    if (frame->type == TO_GUEST_HELLO) {
        greet(session, frame);
        explicit_bzero(frame->payload, frame->length);
        return;
    }
    if (!session->open) return;
    if (frame->type == TO_GUEST_REQUEST) {
        request(session, frame);
        if (frame->length > 0 && frame->payload[0] == REQUEST_ROTATE) explicit_bzero(frame->payload, frame->length);
        return;
    }
    struct stream *stream = streams_find(&session->streams, frame->stream);
    if (stream == NULL) return;
    if (frame->type == TO_GUEST_BODY && stream->state == STREAM_BODY)
        receive_body(session, stream, frame->payload, frame->length);
    else if (frame->type == TO_GUEST_STDIN) stream_input(stream, &session->port, frame->payload, frame->length);
    else if (frame->type == TO_GUEST_STDIN_END) stream->command.input_closing = true;
    else if (frame->type == TO_GUEST_CREDIT) credit(stream, frame);
    else if (frame->type == TO_GUEST_KILL) end_or_signal(session, stream, frame);
}

void session_receive(struct session *session) {
    struct port *port = &session->port;
    struct frame frame;
    while (port_room(port) > PORT_RESERVE / 2 && port_fill(port)) {
        struct span in = {port->in + port->in_at, port->in_end - port->in_at};
        enum frame_result result = frame_next(&session->parser, &in, &frame);
        /* Every byte is wiped once it was taken: among them are tokens. */
        size_t at = port->in_end - in.length;
        explicit_bzero(port->in + port->in_at, at - port->in_at);
        port->in_at = at;
        if (result == FRAME_GARBLED && session->open) {
            bool lost = session->parser.lost;
            uint32_t zeros = session->parser.zeros;
            session_end(session);
            session->parser.lost = lost;
            session->parser.zeros = zeros;
            /* Else the host would wait for commands that have been killed. */
            refuse(session, REFUSED_MALFORMED, "no frame");
        }
        if (result == FRAME_READY) handle(session, &frame);
    }
}
