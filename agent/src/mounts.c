#include "mounts.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base.h"
#include "spawn.h"

#define REPORT_FD 3

static const char *next_string(const char **at, const char *end) {
    const char *found = *at;
    const char *zero = found < end ? memchr(found, 0, (size_t)(end - found)) : NULL;
    if (zero == NULL) return NULL;
    *at = zero + 1;
    return found;
}

bool mount_parse(const uint8_t *body, size_t length, struct shared *out) {
    const char *at = (const char *)body, *end = at + length;
    const char *tag = next_string(&at, end);
    const char *path = tag != NULL ? next_string(&at, end) : NULL;
    const char *mode = path != NULL ? next_string(&at, end) : NULL;
    if (mode == NULL || at != end || tag[0] == 0 || path[0] != '/') return false;
    if (strlen(tag) > MOUNT_TAG_MAX || strlen(path) > MOUNT_PATH_MAX) return false;
    out->readonly = strcmp(mode, "ro") == 0;
    if (!out->readonly && strcmp(mode, "rw") != 0) return false;
    text(out->tag, sizeof out->tag, "%s", tag);
    text(out->path, sizeof out->path, "%s", path);
    return true;
}

const struct shared *mounts_find(const struct mounts *mounts, const char *tag) {
    for (size_t i = 0; i < mounts->count; i++) {
        if (strcmp(mounts->all[i].tag, tag) == 0) return &mounts->all[i];
    }
    return NULL;
}

/* Every folder of the path; whether the last one is there is told by the mount. False: one could not be made. */
static bool make_folders(const char *path) {
    char part[MOUNT_PATH_MAX + 1];
    bool made = true;
    for (size_t length = 1; length <= strlen(path); length++) {
        if (path[length] != '/' && path[length] != 0) continue;
        text(part, sizeof part, "%.*s", (int)length, path);
        made = mkdir(part, 0755) == 0 || errno == EEXIST;
    }
    return made;
}

static _Noreturn void attach(int mount_ns, const struct shared *wanted) {
    char line[160] = "";
    unsigned long flags = MS_NOSUID | MS_NODEV | (wanted->readonly ? MS_RDONLY : 0u);
    if (setns(mount_ns, CLONE_NEWNS) != 0) {
        text(line, sizeof line, "the workloads' namespace: %s", strerror(errno));
    } else {
        bool made = make_folders(wanted->path);
        int problem = errno;
        if (mount(wanted->tag, wanted->path, "virtiofs", flags, NULL) != 0) {
            if (errno == ENOENT && !made)
                text(line, sizeof line, "%.80s: it is missing and cannot be made: %s", wanted->path, strerror(problem));
            else text(line, sizeof line, "%.80s: %s", wanted->path, strerror(errno));
        }
    }
    (void)write_all(REPORT_FD, line, strlen(line) + 1);
    _exit(0);
}

bool mount_attach(int mount_ns, int group, const struct shared *wanted, char *why, size_t room) {
    int report[2];
    if (pipe2(report, O_CLOEXEC) != 0) {
        text(why, room, "%s", strerror(errno));
        return false;
    }
    AUTO_CLOSE int from = report[0], to = report[1];
    pid_t child = spawn(group);
    if (child == 0) {
        (void)dup3(to, REPORT_FD, O_CLOEXEC);
        attach(mount_ns, wanted);
    }
    if (child < 0) {
        text(why, room, "%s", strerror(errno));
        return false;
    }
    close_fd(&to);
    char line[160] = "it ended at once";
    ssize_t size = read(from, line, sizeof line - 1);
    while (waitpid(child, NULL, 0) < 0 && errno == EINTR) continue;
    if (size == 1 && line[0] == 0) return true;
    if (size > 0) line[size] = 0;
    text(why, room, "cannot mount %s", line);
    say("%s", why);
    return false;
}
