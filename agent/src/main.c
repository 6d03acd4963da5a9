/* PID 1 of the guest: one loop, one thread, memory of a fixed size apart from requests being received. */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base.h"
#include "boot.h"
#include "cgroups.h"
#include "session.h"

static struct session session;
static struct pollfd polls[2 + STREAM_POLLS];

static int watch_signals(void) {
    sigset_t all;
    sigfillset(&all);
    /* All of them: PID 1 is asked for things over the port, and SIGPIPE is told by EPIPE. */
    if (sigprocmask(SIG_BLOCK, &all, NULL) != 0) return -1;
    sigset_t child;
    sigemptyset(&child);
    sigaddset(&child, SIGCHLD);
    return signalfd(-1, &child, SFD_NONBLOCK | SFD_CLOEXEC);
}

static void reap(int signals) {
    struct signalfd_siginfo skipped[16];
    while (read(signals, skipped, sizeof skipped) > 0) continue;
    int status;
    for (pid_t pid = waitpid(-1, &status, WNOHANG); pid > 0; pid = waitpid(-1, &status, WNOHANG)) {
        if (pid == session.view.init) view_ended(&session.view);
        else streams_reaped(&session.streams, pid, status);
    }
}

static int wait_ms(void) {
    int64_t deadline = streams_deadline(&session.streams), look = port_deadline(&session.port);
    if (deadline == 0 || (look != 0 && look < deadline)) deadline = look;
    if (deadline == 0) return -1;
    int64_t left = deadline - now_ms();
    if (left < 0) return 0;
    return left > 60000 ? 60000 : (int)left;
}

static _Noreturn void serve(int signals) {
    char why[160];
    bool prepared = false, put_off = false;
    for (;;) {
        bool room = port_room(&session.port) > PORT_RESERVE;
        polls[0] = (struct pollfd){.fd = session.port.epoll, .events = POLLIN};
        polls[1] = (struct pollfd){.fd = signals, .events = POLLIN};
        nfds_t count = 2 + streams_poll(&session.streams, room, polls + 2);
        if (poll(polls, count, put_off && room ? 0 : wait_ms()) < 0 && errno != EINTR) say("poll: %s", strerror(errno));
        reap(signals);
        if (port_host_left(&session.port)) {
            session_end(&session);
            session.port.in_at = session.port.in_end = 0;
        }
        session_receive(&session);
        put_off = port_room(&session.port) <= PORT_RESERVE;
        port_flush(&session.port);
        streams_turn(&session.streams, &session.port);
        /* Requests and ends wait for room without a descriptor that would wake us: when there is room again, the next
         * round comes at once. */
        put_off = put_off || port_room(&session.port) <= PORT_RESERVE;
        port_flush(&session.port);
        /* After the answer to hello, so that it is not waited for, and before the first command asks for it. */
        if (session.open && !prepared) {
            prepared = true;
            boot_rest();
            if (session.disks.root_ready) (void)view_start(&session.view, why, sizeof why);
            cgroups_limit_memory();
        }
    }
}

int main(void) {
    if (getpid() != 1) return 1;
    int signals = watch_signals();
    boot();
    streams_setup(&session.streams);
    if (!port_open(&session.port)) say("no port box.agent.0: nobody can talk to this guest");
    if (!cgroups_setup() || !view_setup(&session.view)) say("cannot prepare for commands: %s", strerror(errno));
    disks_mount(&session.disks, boot_flag("box.build") ? ROOT_BUILD : boot_flag("box.readonly") ? ROOT_READONLY : ROOT_IN_RAM);
    serve(signals);
}
