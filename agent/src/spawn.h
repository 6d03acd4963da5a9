/* A child born in its cgroup. */
#ifndef BOX_SPAWN_H
#define BOX_SPAWN_H

#include <sys/types.h>

/* Like fork(2), but the child starts in the cgroup whose directory is given, so there is no moment at which it could
 * fork outside. The child has default signal handlers and still our signal mask. */
pid_t spawn(int cgroup);

#endif
