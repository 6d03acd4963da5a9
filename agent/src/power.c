#include "power.h"

#include <errno.h>
#include <linux/reboot.h>
#include <signal.h>
#include <sys/reboot.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base.h"
#include "cgroups.h"

#define STEP_NS 2000000L
#define GRACE_MAX_MS 60000u
#define KILL_WAIT_MS 5000
#define SEND_WAIT_MS 2000

static void a_moment(void) {
    nanosleep(&(struct timespec){.tv_nsec = STEP_NS}, NULL);
}

static void reap(struct session *session) {
    for (pid_t pid = waitpid(-1, NULL, WNOHANG); pid > 0; pid = waitpid(-1, NULL, WNOHANG)) {
        if (pid == session->view.init) view_ended(&session->view);
    }
}

int power_settle(struct session *session, uint32_t grace_ms) {
    if (grace_ms > GRACE_MAX_MS) grace_ms = GRACE_MAX_MS;
    if (cgroups_work_populated()) {
        cgroups_signal_work(SIGTERM);
        for (int64_t until = now_ms() + grace_ms; cgroups_work_populated() && now_ms() < until;) {
            reap(session);
            a_moment();
        }
    }
    cgroups_kill_work();
    if (session->view.init > 0) (void)kill(session->view.init, SIGKILL);
    int64_t until = now_ms() + KILL_WAIT_MS;
    while ((session->view.init > 0 || cgroups_work_populated()) && now_ms() < until) {
        reap(session);
        a_moment();
    }
    int error;
    do {
        error = disks_unmount(&session->disks);
        if (error == -EBUSY) a_moment(); /* the last user's exit drops its mounts a moment after it was reaped */
    } while (error == -EBUSY && now_ms() < until);
    sync();
    return -error;
}

void power_off(struct session *session) {
    int64_t until = now_ms() + SEND_WAIT_MS;
    while (session->port.out_at < session->port.out_end && now_ms() < until) {
        port_flush(&session->port);
        a_moment();
    }
    /* The write above only hands the bytes to the device; give the host the time to take them. */
    a_moment();
    (void)reboot(RB_POWER_OFF);
    (void)reboot(RB_AUTOBOOT);
    for (;;) pause();
}
