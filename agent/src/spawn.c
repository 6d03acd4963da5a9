#include "spawn.h"

#include <linux/sched.h>
#include <signal.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

pid_t spawn(int cgroup) {
    struct clone_args arguments = {
        .flags = CLONE_INTO_CGROUP | CLONE_CLEAR_SIGHAND,
        .exit_signal = SIGCHLD,
        .cgroup = (uint64_t)(unsigned)cgroup,
    };
    return (pid_t)syscall(SYS_clone3, &arguments, sizeof arguments);
}
