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

static void close_directory(DIR **directory) {
    if (*directory != NULL) closedir(*directory);
}
#define AUTO_CLOSEDIR __attribute__((cleanup(close_directory)))

bool cgroups_setup(void) {
    /* Without the pids controller commands still run and end; only the guard against fork bombs is missing. */
    if (!file_put(AT_FDCWD, CGROUP_ROOT "/cgroup.subtree_control", "+pids")) say("no pids controller in this guest");
    if (mkdir(CGROUP_INIT, 0755) != 0 && errno != EEXIST) return false;
    if (mkdir(CGROUP_WORK, 0755) != 0 && errno != EEXIST) return false;
    (void)file_put(AT_FDCWD, CGROUP_WORK "/pids.max", WORK_PIDS);
    return true;
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
