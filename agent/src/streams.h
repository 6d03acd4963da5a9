/* The logical streams of a session: requests being received, commands running, and their data under credit. */
#ifndef BOX_STREAMS_H
#define BOX_STREAMS_H

#include <poll.h>

#include "command.h"
#include "port.h"
#include "request.h"

#define STREAMS_MAX 128u
#define BODIES_MAX (16u << 20)
#define LEFT_MAX 128u /* output pipes of processes that commands left running */

enum stream_state {
    STREAM_FREE,
    STREAM_BODY,    /* its request is still arriving */
    STREAM_RUNNING,
    STREAM_FORGOTTEN, /* killed, nobody takes its output; waits to be reaped */
};

struct stream {
    enum stream_state state;
    uint32_t id; /* 0: of a session that has ended */
    enum request_kind kind;
    uint8_t *body;
    uint32_t body_have, body_total;
    uint32_t credit[2];
    struct command command;
};

struct streams {
    struct stream all[STREAMS_MAX];
    size_t next;          /* where the round of fair turns begins */
    uint32_t body_bytes;  /* of all bodies together */
    uint32_t commands;    /* ever started; names cgroups */
    int left[LEFT_MAX];
};

void streams_setup(struct streams *streams);
struct stream *streams_find(struct streams *streams, uint32_t id);
struct stream *streams_new(struct streams *streams, uint32_t id);
void stream_free_body(struct streams *streams, struct stream *stream);
void stream_release(struct streams *streams, struct stream *stream);

/* Starts what the body asks for. Answers EXIT itself when that cannot be done. */
void stream_start(struct streams *streams, struct stream *stream, struct view *view, const char *data_device,
                  struct port *port);
void stream_exit(struct streams *streams, struct stream *stream, struct port *port, enum exit_kind kind,
                 uint32_t value, const char *reason);

void stream_input(struct stream *stream, struct port *port, const uint8_t *data, size_t length);
/* Kills a running command and drops its output; its slot is free once it was reaped. */
void stream_forget(struct stream *stream);
void streams_end_session(struct streams *streams);

/* For the loop: what to wait for, what to do then, and how long to wait at most. */
#define STREAM_POLLS (STREAMS_MAX * 4u + LEFT_MAX)
size_t streams_poll(const struct streams *streams, bool room, struct pollfd *polls);
void streams_turn(struct streams *streams, struct port *port);
int64_t streams_deadline(const struct streams *streams);
void streams_reaped(struct streams *streams, pid_t pid, int wait_status);

#endif
