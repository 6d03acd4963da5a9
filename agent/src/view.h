/* What workloads live in: a PID and mount namespace below PID 1, with an init of its own that only reaps. They cannot
 * name, signal or trace the agent, and the root they see is not the one the agent runs from. */
#ifndef BOX_VIEW_H
#define BOX_VIEW_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "mounts.h"

struct view {
    pid_t init;       /* in the agent's numbering; 0: there is no view */
    int own_pid_ns;   /* the agent's, to come back to before making another */
    int mount_ns;     /* of the view */
    struct mounts mounts;
};

bool view_setup(struct view *view);

/* Makes the view if there is none (the first time, or because its init was killed). False with the reason in `why`. */
bool view_start(struct view *view, char *why, size_t room);

/* Mounts a host directory in the view, now and whenever it is made anew. Done already: nothing to do. False with the
 * reason in `why`. */
bool view_mount(struct view *view, const struct shared *wanted, char *why, size_t room);

/* The init was reaped: with it the kernel has killed everything in the view. */
void view_ended(struct view *view);

#endif
