/* One running command: its process, cgroup and pipes. Knows nothing of frames. */
#ifndef BOX_COMMAND_H
#define BOX_COMMAND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "failure.h"
#include "request.h"
#include "view.h"

struct command {
    uint32_t number;      /* of its cgroup */
    int cgroup;
    pid_t pid;            /* 0 once reaped */
    int wait_status;
    int in, out[2], status;
    int32_t left[2];      /* after the exit: bytes that were in the pipe then; -1 before */
    uint8_t *input;       /* STDIN_WINDOW bytes, from input_at to input_end */
    size_t input_at, input_end;
    bool input_closing;   /* close `in` once the buffer is empty */
    int64_t deadline;     /* now_ms(); 0: none */
    bool timed_out;
    struct child_failure failure; /* kind 0: none */
};

void command_clear(struct command *command);

/* False with the reason in `why`, and nothing left behind. */
bool command_start(struct command *command, const struct order *order, struct view *view, uint32_t number, char *why,
                   size_t room);

/* SIGKILL for everything it started; any other signal for its process group. */
void command_signal(struct command *command, int signal);

/* The main process was reaped: fixes how much output is still to come. */
void command_reaped(struct command *command, int wait_status);

/* True when the process has ended and nothing of its output is to come. */
bool command_finished(const struct command *command);

/* Closes everything. `keep` gets the output pipes that processes left behind still write to. */
void command_close(struct command *command, int keep[2]);

#endif
