#include "command.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base.h"
#include "cgroups.h"
#include "child.h"
#include "spawn.h"

void command_clear(struct command *command) {
    memset(command, 0, sizeof *command);
    command->cgroup = command->in = command->out[0] = command->out[1] = command->status = -1;
    command->left[0] = command->left[1] = -1;
}

/* A pipe with our end, number `ours`, not blocking. */
static bool make_pipe(int ends[2], int ours) {
    if (pipe2(ends, O_CLOEXEC) != 0) return false;
    return fcntl(ends[ours], F_SETFL, O_NONBLOCK) == 0;
}

struct child_ends {
    int in, out[2], status;
};

static void close_ends(struct child_ends *ends) {
    close_fd(&ends->in);
    close_fd(&ends->out[0]);
    close_fd(&ends->out[1]);
    close_fd(&ends->status);
}

static bool make_pipes(struct command *command, const struct order *order, struct child_ends *ends) {
    int pair[2];
    for (int i = 0; i < 2; i++) {
        if (!make_pipe(pair, 0)) return false;
        command->out[i] = pair[0];
        ends->out[i] = pair[1];
    }
    if (!make_pipe(pair, 0)) return false;
    command->status = pair[0];
    ends->status = pair[1];
    if (!order->wants_stdin) {
        ends->in = open("/dev/null", O_RDONLY | O_CLOEXEC);
        return ends->in >= 0;
    }
    if (!make_pipe(pair, 1)) return false;
    ends->in = pair[0];
    command->in = pair[1];
    command->input = malloc(STDIN_WINDOW);
    return command->input != NULL;
}

static _Noreturn void in_child(const struct child_ends *ends, const struct order *order, int mount_ns) {
    /* Our own descriptors all lie above 4 (boot.c), so none of these overwrites another. */
    (void)dup2(ends->in, STDIN_FILENO);
    (void)dup2(ends->out[0], STDOUT_FILENO);
    (void)dup2(ends->out[1], STDERR_FILENO);
    (void)dup3(ends->status, CHILD_STATUS_FD, O_CLOEXEC);
    (void)dup3(mount_ns, CHILD_MOUNTS_FD, O_CLOEXEC);
    (void)close_range(CHILD_MOUNTS_FD + 1, ~0U, 0);
    child_run(order);
}

bool command_start(struct command *command, const struct order *order, struct view *view, uint32_t number, char *why,
                   size_t room) {
    __attribute__((cleanup(close_ends))) struct child_ends ends = {-1, {-1, -1}, -1};
    int none[2];
    command_clear(command);
    command->number = number;
    if (!view_start(view, why, room)) return false;
    command->cgroup = cgroup_make(number);
    if (command->cgroup >= 0 && make_pipes(command, order, &ends)) {
        command->pid = spawn(command->cgroup);
        if (command->pid == 0) in_child(&ends, order, view->mount_ns);
        if (command->pid > 0) {
            if (order->timeout_ms > 0) command->deadline = now_ms() + order->timeout_ms;
            return true;
        }
    }
    text(why, room, "cannot start a process: %s", strerror(errno));
    command->pid = 0;
    command_close(command, none);
    return false;
}

void command_signal(struct command *command, int signal) {
    if (signal == SIGKILL) {
        if (command->cgroup >= 0) cgroup_kill(command->cgroup);
    } else if (command->pid > 0) {
        /* Not reaped yet, so the number still means our child; it leads its own group once it has called setsid. */
        if (kill(-command->pid, signal) != 0) (void)kill(command->pid, signal);
    }
}

static void read_failure(struct command *command) {
    struct child_failure failure;
    if (read(command->status, &failure, sizeof failure) == (ssize_t)sizeof failure) {
        command->failure = failure;
        command->failure.text[sizeof failure.text - 1] = 0;
    }
    close_fd(&command->status);
}

void command_reaped(struct command *command, int wait_status) {
    command->pid = 0;
    command->wait_status = wait_status;
    command->deadline = 0;
    read_failure(command);
    close_fd(&command->in);
    for (int i = 0; i < 2; i++) {
        int waiting = 0;
        if (command->out[i] >= 0) (void)ioctl(command->out[i], FIONREAD, &waiting);
        command->left[i] = waiting;
    }
}

bool command_finished(const struct command *command) {
    for (int i = 0; i < 2; i++) {
        if (command->out[i] >= 0 && command->left[i] != 0) return false;
    }
    return command->pid == 0;
}

void command_close(struct command *command, int keep[2]) {
    bool left_running = command->cgroup >= 0 && !cgroup_remove(command->number);
    for (int i = 0; i < 2; i++) {
        keep[i] = -1;
        if (left_running) {
            keep[i] = command->out[i];
            command->out[i] = -1;
        }
        close_fd(&command->out[i]);
    }
    close_fd(&command->cgroup);
    close_fd(&command->in);
    close_fd(&command->status);
    free(command->input);
    command_clear(command);
}
