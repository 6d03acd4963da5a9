#include "cgroups.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base.h"

/* Leaves PIDs for PID 1's own children when a command forks without end. */
#define WORK_PIDS "16384"

/* What the commands cannot have of the RAM that is available when nothing runs yet: 12 MiB and 1/128 of all, at most
 * 64 MiB. The kernel needs it for itself and for the files in use. Without swap, a kernel that runs out goes on looking
 * for pages to evict instead of ending anything: for 40 s and more, during which the agent gets none either. */
#define RESERVE_KIB (12L * 1024)
#define RESERVE_SHARE 128
#define RESERVE_MOST_KIB (64L * 1024)

static void close_directory(DIR **directory) {
    if (*directory != NULL) closedir(*directory);
}
#define AUTO_CLOSEDIR __attribute__((cleanup(close_directory)))

bool cgroups_setup(void) {
    /* Without the pids controller commands still run and end; only the guard against fork bombs is missing. */
    if (!file_put(AT_FDCWD, CGROUP_ROOT "/cgroup.subtree_control", "+pids")) say("no pids controller in this guest");
    if (!file_put(AT_FDCWD, CGROUP_ROOT "/cgroup.subtree_control", "+memory")) say("no memory controller in this guest");
    if (mkdir(CGROUP_INIT, 0755) != 0 && errno != EEXIST) return false;
    if (mkdir(CGROUP_WORK, 0755) != 0 && errno != EEXIST) return false;
    (void)file_put(AT_FDCWD, CGROUP_WORK "/pids.max", WORK_PIDS);
    return true;
}

/* A line of /proc/meminfo in KiB, 0 when there is none. */
static long meminfo(const char *content, const char *key) {
    const char *line = strstr(content, key);
    return line == NULL ? 0 : strtol(line + strlen(key), NULL, 10);
}

void cgroups_limit_memory(void) {
    char content[4096], limit[32];
    if (!file_text("/proc/meminfo", content, sizeof content)) return;
    long reserve = RESERVE_KIB + meminfo(content, "MemTotal:") / RESERVE_SHARE;
    if (reserve > RESERVE_MOST_KIB) reserve = RESERVE_MOST_KIB;
    long left = meminfo(content, "MemAvailable:") - reserve;
    if (left <= 0) return;
    text(limit, sizeof limit, "%ldK", left);
    if (!file_put(AT_FDCWD, CGROUP_WORK "/memory.max", limit)) say("memory limit of commands: %s", strerror(errno));
}

static void name_of(char *path, size_t room, uint32_t number) {
    text(path, room, CGROUP_WORK "/c%u", number);
}

int cgroup_make(uint32_t number) {
    char path[64];
    name_of(path, sizeof path, number);
    if (mkdir(path, 0755) != 0 && errno != EEXIST) return -1;
    return open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

void cgroup_kill(int directory) {
    if (!file_put(directory, "cgroup.kill", "1")) say("cgroup.kill: %s", strerror(errno));
}

/* A workload with CAP_SYS_ADMIN may have made groups below; they go first. */
static bool remove_tree(const char *path, int depth) {
    if (rmdir(path) == 0 || errno == ENOENT) return true;
    if (errno != EBUSY || depth == 0) return false;
    AUTO_CLOSEDIR DIR *directory = opendir(path);
    if (directory == NULL) return false;
    for (struct dirent *entry = readdir(directory); entry != NULL; entry = readdir(directory)) {
        if (entry->d_type != DT_DIR || entry->d_name[0] == '.') continue;
        char below[512];
        text(below, sizeof below, "%s/%s", path, entry->d_name);
        (void)remove_tree(below, depth - 1);
    }
    return rmdir(path) == 0;
}

bool cgroup_remove(uint32_t number) {
    char path[64];
    name_of(path, sizeof path, number);
    return remove_tree(path, 4);
}

void cgroups_sweep(void) {
    AUTO_CLOSEDIR DIR *work = opendir(CGROUP_WORK);
    if (work == NULL) return;
    for (struct dirent *entry = readdir(work); entry != NULL; entry = readdir(work)) {
        char path[320];
        if (entry->d_type != DT_DIR || entry->d_name[0] != 'c') continue;
        text(path, sizeof path, CGROUP_WORK "/%s", entry->d_name);
        /* A running command's directory is populated, and populated ones cannot be removed. */
        (void)rmdir(path);
    }
}

static void signal_group(const char *path, int signal) {
    AUTO_CLOSE int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return;
    FILE *file = fdopen(fd, "r");
    if (file == NULL) return;
    fd = -1;
    char line[32];
    while (fgets(line, sizeof line, file) != NULL) {
        pid_t pid = (pid_t)strtol(line, NULL, 10);
        if (pid > 1) (void)kill(pid, signal);
    }
    (void)fclose(file);
}

void cgroups_signal_work(int signal) {
    AUTO_CLOSEDIR DIR *work = opendir(CGROUP_WORK);
    if (work == NULL) return;
    for (struct dirent *entry = readdir(work); entry != NULL; entry = readdir(work)) {
        char path[320];
        if (entry->d_type != DT_DIR || entry->d_name[0] != 'c') continue;
        text(path, sizeof path, CGROUP_WORK "/%s/cgroup.procs", entry->d_name);
        signal_group(path, signal);
    }
}

bool cgroups_work_populated(void) {
    char events[128];
    if (!file_text(CGROUP_WORK "/cgroup.events", events, sizeof events)) return false;
    return strstr(events, "populated 1") != NULL;
}

void cgroups_kill_work(void) {
    AUTO_CLOSE int work = open(CGROUP_WORK, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (work >= 0) cgroup_kill(work);
}
