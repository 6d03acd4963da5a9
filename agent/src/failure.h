/* How a child tells the agent that its program could not be started, and the numbers EXIT carries. */
#ifndef BOX_FAILURE_H
#define BOX_FAILURE_H

#include <stdint.h>

/* Numbers of EXIT in PROTOCOL.md. */
enum exit_kind {
    EXIT_STATUS = 0,
    EXIT_SIGNAL = 1,
    EXIT_TIMEOUT = 2,
    EXIT_NOT_FOUND = 3,
    EXIT_NOT_EXECUTABLE = 4,
    EXIT_REFUSED = 5,
};

/* What a child tells the agent when its program could not be started: one write, smaller than PIPE_BUF. */
struct child_failure {
    uint32_t kind;
    uint32_t error;
    char text[240];
};

/* Where the child finds its descriptors: 0, 1, 2 as usual and these. All others are closed. */
#define CHILD_STATUS_FD 3
#define CHILD_MOUNTS_FD 4

/* Reports and ends. */
_Noreturn void child_fail(enum exit_kind kind, int error, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#endif
