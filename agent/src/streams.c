#include "streams.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base.h"
#include "cgroups.h"

#define SWEEP_EVERY 16u

void streams_setup(struct streams *streams) {
    memset(streams, 0, sizeof *streams);
    for (size_t i = 0; i < STREAMS_MAX; i++) command_clear(&streams->all[i].command);
    for (size_t i = 0; i < LEFT_MAX; i++) streams->left[i] = -1;
}

struct stream *streams_find(struct streams *streams, uint32_t id) {
    for (size_t i = 0; i < STREAMS_MAX; i++) {
        struct stream *stream = &streams->all[i];
        bool ours = stream->state == STREAM_BODY || stream->state == STREAM_RUNNING;
        if (ours && stream->id == id) return stream;
    }
    return NULL;
}

struct stream *streams_new(struct streams *streams, uint32_t id) {
    for (size_t i = 0; i < STREAMS_MAX; i++) {
        struct stream *stream = &streams->all[i];
        if (stream->state != STREAM_FREE) continue;
        stream->state = STREAM_BODY;
        stream->id = id;
        return stream;
    }
    return NULL;
}

void stream_free_body(struct streams *streams, struct stream *stream) {
    if (stream->body == NULL) return;
    explicit_bzero(stream->body, stream->body_total);
    free(stream->body);
    streams->body_bytes -= stream->body_total;
    stream->body = NULL;
    stream->body_total = stream->body_have = 0;
}

/* A process left behind may go on writing; it must neither block nor be killed by SIGPIPE for it. */
static void keep_left(struct streams *streams, int fd) {
    if (fd < 0) return;
    for (size_t i = 0; i < LEFT_MAX; i++) {
        if (streams->left[i] >= 0) continue;
        streams->left[i] = fd;
        return;
    }
    close(fd);
}

void stream_release(struct streams *streams, struct stream *stream) {
    int keep[2];
    stream_free_body(streams, stream);
    command_close(&stream->command, keep);
    keep_left(streams, keep[0]);
    keep_left(streams, keep[1]);
    stream->state = STREAM_FREE;
}

void stream_exit(struct streams *streams, struct stream *stream, struct port *port, enum exit_kind kind,
                 uint32_t value, const char *reason) {
    uint8_t payload[5 + 256];
    size_t length = strnlen(reason, 256);
    payload[0] = (uint8_t)kind;
    store32(payload + 1, value);
    memcpy(payload + 5, reason, length);
    port_frame(port, TO_HOST_EXIT, stream->id, payload, 5 + length);
    stream_release(streams, stream);
}

void stream_start(struct streams *streams, struct stream *stream, struct view *view, const char *data_device,
                  struct port *port) {
    struct order order;
    char why[160];
    if (!order_parse(stream->kind, stream->body, stream->body_total, &order)) {
        stream_exit(streams, stream, port, EXIT_REFUSED, EINVAL, "malformed request");
        return;
    }
    order.device = data_device;
    if (streams->commands % SWEEP_EVERY == 0) cgroups_sweep();
    if (!command_start(&stream->command, &order, view, streams->commands++, why, sizeof why)) {
        stream_exit(streams, stream, port, EXIT_REFUSED, EAGAIN, why);
        return;
    }
    stream->credit[0] = order.window[0];
    stream->credit[1] = order.window[1];
    stream_free_body(streams, stream);
    stream->state = STREAM_RUNNING;
}

static void give_input_credit(struct stream *stream, struct port *port, size_t amount) {
    uint8_t payload[5] = {0};
    store32(payload + 1, (uint32_t)amount);
    port_frame(port, TO_HOST_CREDIT, stream->id, payload, sizeof payload);
}

static void drain_input(struct stream *stream, struct port *port) {
    struct command *command = &stream->command;
    size_t begun = command->input_at;
    while (command->in >= 0 && command->input_at < command->input_end) {
        ssize_t size = write(command->in, command->input + command->input_at, command->input_end - command->input_at);
        if (size < 0 && errno == EINTR) continue;
        if (size < 0 && errno == EAGAIN) break;
        if (size < 0) close_fd(&command->in); /* nobody reads any more */
        else command->input_at += (size_t)size;
    }
    /* Input for a reader that has gone is taken and thrown away, so that the host is not left waiting. */
    if (command->in < 0) command->input_at = command->input_end;
    if (command->input_at > begun) give_input_credit(stream, port, command->input_at - begun);
    if (command->input_at == command->input_end) {
        command->input_at = command->input_end = 0;
        if (command->input_closing) close_fd(&command->in);
    }
}

void stream_input(struct stream *stream, struct port *port, const uint8_t *data, size_t length) {
    struct command *command = &stream->command;
    if (command->input == NULL || command->input_closing || length == 0) return;
    if (STDIN_WINDOW - command->input_end < length) {
        memmove(command->input, command->input + command->input_at, command->input_end - command->input_at);
        command->input_end -= command->input_at;
        command->input_at = 0;
    }
    /* More than was granted: the host is not keeping to the protocol, and only its own input suffers. */
    if (length > STDIN_WINDOW - command->input_end) length = STDIN_WINDOW - command->input_end;
    memcpy(command->input + command->input_end, data, length);
    command->input_end += length;
    drain_input(stream, port);
}

void stream_forget(struct stream *stream) {
    /* Before its input is closed: end of file must not look to it as if all had come. */
    command_signal(&stream->command, SIGKILL);
    stream->state = STREAM_FORGOTTEN;
    close_fd(&stream->command.in);
    close_fd(&stream->command.out[0]);
    close_fd(&stream->command.out[1]);
}

void streams_end_session(struct streams *streams) {
    for (size_t i = 0; i < STREAMS_MAX; i++) {
        struct stream *stream = &streams->all[i];
        if (stream->state == STREAM_RUNNING && stream->command.pid > 0) stream_forget(stream);
        /* A command that has exited, and only waits for its output to be taken, leaves running what it left running. */
        else if (stream->state == STREAM_BODY || stream->state == STREAM_RUNNING) stream_release(streams, stream);
        stream->id = 0;
    }
}

static void pump_output(struct stream *stream, struct port *port, int channel) {
    struct command *command = &stream->command;
    int fd = command->out[channel];
    int32_t left = command->left[channel];
    if (fd < 0 || left == 0 || stream->credit[channel] == 0 || port_room(port) <= PORT_RESERVE) return;
    size_t size = FRAME_PAYLOAD_MAX;
    if (size > stream->credit[channel]) size = stream->credit[channel];
    if (left > 0 && size > (size_t)left) size = (size_t)left;
    uint8_t *at = port_data_begin(port);
    ssize_t have = at != NULL ? read(fd, at, size) : -1;
    if (have > 0) {
        port_data_end(port, channel == 0 ? TO_HOST_STDOUT : TO_HOST_STDERR, stream->id, (size_t)have);
        stream->credit[channel] -= (uint32_t)have;
        if (left > 0) command->left[channel] -= (int32_t)have;
    } else if (have == 0) {
        close_fd(&command->out[channel]);
    }
}

static void report_end(struct streams *streams, struct stream *stream, struct port *port) {
    const struct command *command = &stream->command;
    if (stream->id == 0) {
        stream_release(streams, stream);
        return;
    }
    struct child_failure failure = command->failure;
    int status = command->wait_status;
    if (command->timed_out) stream_exit(streams, stream, port, EXIT_TIMEOUT, 0, "");
    else if (failure.kind != 0)
        stream_exit(streams, stream, port, (enum exit_kind)failure.kind, failure.error, failure.text);
    else if (WIFSIGNALED(status)) stream_exit(streams, stream, port, EXIT_SIGNAL, (uint32_t)WTERMSIG(status), "");
    else stream_exit(streams, stream, port, EXIT_STATUS, (uint32_t)WEXITSTATUS(status), "");
}

static void discard_left(struct streams *streams) {
    static uint8_t waste[FRAME_MAX];
    for (size_t i = 0; i < LEFT_MAX; i++) {
        if (streams->left[i] < 0) continue;
        ssize_t size = read(streams->left[i], waste, sizeof waste);
        if (size == 0 || (size < 0 && errno != EAGAIN && errno != EINTR)) close_fd(&streams->left[i]);
    }
}

void streams_turn(struct streams *streams, struct port *port) {
    int64_t now = now_ms();
    streams->next = (streams->next + 1) % STREAMS_MAX;
    for (size_t i = 0; i < STREAMS_MAX; i++) {
        struct stream *stream = &streams->all[(streams->next + i) % STREAMS_MAX];
        struct command *command = &stream->command;
        bool ended = command_finished(command) && port_room(port) > PORT_RESERVE;
        if (stream->state == STREAM_FORGOTTEN && ended) report_end(streams, stream, port);
        if (stream->state != STREAM_RUNNING) continue;
        if (command->deadline != 0 && now >= command->deadline) {
            command->timed_out = true;
            command->deadline = 0;
            command_signal(command, SIGKILL);
        }
        if (port_room(port) > PORT_RESERVE) drain_input(stream, port);
        pump_output(stream, port, 0);
        pump_output(stream, port, 1);
        if (command_finished(command) && port_room(port) > PORT_RESERVE) report_end(streams, stream, port);
    }
    discard_left(streams);
}

static void want(struct pollfd *polls, size_t *count, int fd, short events) {
    if (fd >= 0) polls[(*count)++] = (struct pollfd){.fd = fd, .events = events};
}

size_t streams_poll(const struct streams *streams, bool room, struct pollfd *polls) {
    size_t count = 0;
    for (size_t i = 0; i < STREAMS_MAX; i++) {
        const struct stream *stream = &streams->all[i];
        if (stream->state != STREAM_RUNNING || !room) continue;
        const struct command *command = &stream->command;
        if (command->input_at < command->input_end) want(polls, &count, command->in, POLLOUT);
        for (int channel = 0; channel < 2; channel++) {
            if (stream->credit[channel] > 0 && command->left[channel] != 0)
                want(polls, &count, command->out[channel], POLLIN);
        }
    }
    for (size_t i = 0; i < LEFT_MAX; i++) want(polls, &count, streams->left[i], POLLIN);
    return count;
}

int64_t streams_deadline(const struct streams *streams) {
    int64_t soonest = 0;
    for (size_t i = 0; i < STREAMS_MAX; i++) {
        int64_t deadline = streams->all[i].state == STREAM_RUNNING ? streams->all[i].command.deadline : 0;
        if (deadline != 0 && (soonest == 0 || deadline < soonest)) soonest = deadline;
    }
    return soonest;
}

void streams_reaped(struct streams *streams, pid_t pid, int wait_status) {
    for (size_t i = 0; i < STREAMS_MAX; i++) {
        struct stream *stream = &streams->all[i];
        if (stream->state == STREAM_FREE || stream->command.pid != pid) continue;
        command_reaped(&stream->command, wait_status);
    }
}
