/* The guest's cgroup tree: `init` for the workloads' init, `work/c<N>` for each command. */
#ifndef BOX_CGROUPS_H
#define BOX_CGROUPS_H

#include <stdbool.h>
#include <stdint.h>

#define CGROUP_ROOT "/sys/fs/cgroup"
#define CGROUP_INIT CGROUP_ROOT "/init"
#define CGROUP_WORK CGROUP_ROOT "/work"

bool cgroups_setup(void);

/* All commands together get what is available now, but for a reserve: whoever wants more is ended by the kernel at
 * once, and nobody else has to wait for memory. To be called when everything of ours is in place. */
void cgroups_limit_memory(void);

/* A new, empty directory for command `number`, opened. Negative with errno. */
int cgroup_make(uint32_t number);

/* SIGKILL to everything in the directory and below it, whatever it forks meanwhile (cgroup.kill, Linux 5.14). */
void cgroup_kill(int directory);

/* Removes the directory of a command, if nothing of it is left. */
bool cgroup_remove(uint32_t number);

/* Removes directories that commands left running processes in and that have become empty since. */
void cgroups_sweep(void);

/* For shutdown: a signal to every process of every command; whether any process is left; SIGKILL to all. */
void cgroups_signal_work(int signal);
bool cgroups_work_populated(void);
void cgroups_kill_work(void);

#endif
