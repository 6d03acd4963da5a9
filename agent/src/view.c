#include "view.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/sched.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base.h"
#include "cgroups.h"
#include "disks.h"
#include "resolver.h"
#include "spawn.h"

struct device {
    const char *path;
    unsigned major, minor;
};

/* Documentation/admin-guide/devices.txt. The agent's port and the disks are not among them. */
static const struct device devices[] = {
    {"dev/null", 1, 3},   {"dev/zero", 1, 5},    {"dev/full", 1, 7},
    {"dev/random", 1, 8}, {"dev/urandom", 1, 9}, {"dev/tty", 5, 0},
};

static const char *const links[][2] = {
    {"/proc/self/fd", "dev/fd"},         {"/proc/self/fd/0", "dev/stdin"}, {"/proc/self/fd/1", "dev/stdout"},
    {"/proc/self/fd/2", "dev/stderr"},   {"pts/ptmx", "dev/ptmx"},
};

static bool attach(const char *source, const char *where, const char *type, unsigned long flags, const char *options) {
    if (mkdir(where, 0755) != 0 && errno != EEXIST && errno != EROFS) return false;
    return mount(source, where, type, flags, options) == 0;
}

/* A folder of the RAM pool, mounted into the view. */
static bool attach_ram(const char *name, const char *where, mode_t mode) {
    char source[64];
    text(source, sizeof source, RAM "/%s", name);
    if (mkdir(source, 0755) != 0 && errno != EEXIST) return false;
    if (chmod(source, mode) != 0) return false;
    return attach(source, where, NULL, MS_BIND, NULL) &&
           mount(NULL, where, NULL, MS_REMOUNT | MS_BIND | MS_NOSUID | MS_NODEV, NULL) == 0;
}

static bool make_devices(void) {
    if (!attach("dev", "dev", "tmpfs", MS_NOSUID | MS_NOEXEC, "mode=0755,size=1m")) return false;
    for (size_t i = 0; i < LENGTH(devices); i++) {
        dev_t number = makedev(devices[i].major, devices[i].minor);
        if (mknod(devices[i].path, S_IFCHR | 0666, number) != 0 || chmod(devices[i].path, 0666) != 0) return false;
    }
    for (size_t i = 0; i < LENGTH(links); i++) {
        if (symlink(links[i][0], links[i][1]) != 0) return false;
    }
    return attach("devpts", "dev/pts", "devpts", MS_NOSUID | MS_NOEXEC, "newinstance,ptmxmode=0666,mode=0620,gid=5") &&
           attach_ram("shm", "dev/shm", 01777);
}

/* Runs as the view's init, in a fresh mount namespace. The step that failed, or NULL. */
static const char *arrange(void) {
    const unsigned long plain = MS_NOSUID | MS_NOEXEC | MS_NODEV;
    if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0) return "propagation";
    if (chdir(SYSROOT) != 0) return "root";
    if (!attach("proc", "proc", "proc", plain, NULL)) return "/proc";
    if (!attach("sys", "sys", "sysfs", plain, NULL)) return "/sys";
    if (!make_devices()) return "/dev";
    if (!attach_ram("tmp", "tmp", 01777)) return "/tmp";
    if (!attach_ram("run", "run", 0755)) return "/run";
    resolver_attach();
    /* What the agent works with is taken out of this namespace before the root is moved over it. */
    static const char *const ours[] = {"/proc", "/sys", "/dev", RAM, "/image"};
    for (size_t i = 0; i < LENGTH(ours); i++) {
        if (umount2(ours[i], MNT_DETACH) != 0 && errno != EINVAL) return "agent's mounts";
    }
    if (mount(".", "/", NULL, MS_MOVE, NULL) != 0) return "moving the root";
    if (chroot(".") != 0 || chdir("/") != 0) return "changing the root";
    return NULL;
}

static _Noreturn void be_init(int report) {
    const char *problem = NULL;
    (void)prctl(PR_SET_NAME, "init");
    (void)setsid();
    if (unshare(CLONE_NEWNS | CLONE_NEWCGROUP) != 0) problem = "namespaces";
    if (problem == NULL) problem = arrange();
    if (problem != NULL) {
        char line[128];
        text(line, sizeof line, "%s: %s", problem, strerror(errno));
        (void)write_all(report, line, strlen(line));
        _exit(1);
    }
    (void)write_all(report, "", 1);
    close(report);
    /* Every signal stays blocked, so only its parent's SIGKILL ends it. SIGCHLD is what it waits for. */
    sigset_t child;
    sigemptyset(&child);
    sigaddset(&child, SIGCHLD);
    for (;;) {
        int number;
        while (waitpid(-1, NULL, WNOHANG) > 0) continue;
        (void)sigwait(&child, &number);
    }
}

bool view_setup(struct view *view) {
    view->init = 0;
    view->mount_ns = -1;
    view->own_pid_ns = open("/proc/self/ns/pid", O_RDONLY | O_CLOEXEC);
    return view->own_pid_ns >= 0;
}

static bool failed(struct view *view, char *why, size_t room, const char *what) {
    text(why, room, "cannot make the workloads' namespace: %s", what);
    say("%s", why);
    if (view->init > 0) (void)kill(view->init, SIGKILL);
    return false;
}

bool view_start(struct view *view, char *why, size_t room) {
    if (view->mount_ns >= 0) return true;
    if (view->init > 0) return failed(view, why, room, "the last one is still ending");
    AUTO_CLOSE int group = open(CGROUP_INIT, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int report[2];
    if (group < 0 || pipe2(report, O_CLOEXEC) != 0) return failed(view, why, room, strerror(errno));
    AUTO_CLOSE int from = report[0], to = report[1];
    /* pid_namespaces(7): after unshare the next child is PID 1 of the new namespace. A second unshare is refused until
     * children go to our own namespace again. */
    if (setns(view->own_pid_ns, CLONE_NEWPID) != 0 || unshare(CLONE_NEWPID) != 0)
        return failed(view, why, room, strerror(errno));
    view->init = spawn(group);
    if (view->init == 0) {
        (void)dup3(to, 3, O_CLOEXEC);
        (void)close_range(4, ~0U, 0);
        be_init(3);
    }
    if (view->init < 0) {
        view->init = 0;
        return failed(view, why, room, strerror(errno));
    }
    close_fd(&to);
    char line[128] = "it ended at once";
    ssize_t size = read(from, line, sizeof line - 1);
    if (size != 1 || line[0] != 0) {
        line[size > 0 ? size : (ssize_t)strlen(line)] = 0;
        return failed(view, why, room, line);
    }
    char path[64];
    text(path, sizeof path, "/proc/%d/ns/mnt", (int)view->init);
    view->mount_ns = open(path, O_RDONLY | O_CLOEXEC);
    if (view->mount_ns < 0) return failed(view, why, room, strerror(errno));
    for (size_t i = 0; i < view->mounts.count; i++) {
        if (mount_attach(view->mount_ns, group, &view->mounts.all[i], line, sizeof line)) continue;
        close_fd(&view->mount_ns);
        return failed(view, why, room, line);
    }
    return true;
}

bool view_mount(struct view *view, const struct shared *wanted, char *why, size_t room) {
    if (!view_start(view, why, room)) return false;
    const struct shared *known = mounts_find(&view->mounts, wanted->tag);
    if (known != NULL) {
        if (strcmp(known->path, wanted->path) == 0 && known->readonly == wanted->readonly) return true;
        text(why, room, "it is mounted at %.80s already", known->path);
        return false;
    }
    if (view->mounts.count == MOUNTS_MAX) {
        text(why, room, "there are %u already", MOUNTS_MAX);
        return false;
    }
    AUTO_CLOSE int group = open(CGROUP_INIT, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (group < 0) {
        text(why, room, "%s", strerror(errno));
        return false;
    }
    if (!mount_attach(view->mount_ns, group, wanted, why, room)) return false;
    view->mounts.all[view->mounts.count++] = *wanted;
    return true;
}

void view_ended(struct view *view) {
    view->init = 0;
    close_fd(&view->mount_ns);
}
