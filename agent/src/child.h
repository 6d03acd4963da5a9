/* A command's own process, between its birth and execve. Runs nothing of PID 1's loop and never returns. */
#ifndef BOX_CHILD_H
#define BOX_CHILD_H

#include "request.h"

_Noreturn void child_run(const struct order *order);

#endif
