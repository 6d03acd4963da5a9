#include "boot.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base.h"
#include "cgroups.h"
#include "disks.h"

#define MODULES "/modules"
/* Everything below is claimed, so that a child can have its pipes at fixed places: see child.c. */
#define FIRST_FREE_FD 5

static void mount_at(const char *type, const char *where, unsigned long flags, const char *options) {
    (void)mkdir(where, 0755);
    if (mount(type, where, type, flags, options) != 0) say("cannot mount %s: %s", where, strerror(errno));
}

static void claim_low_descriptors(void) {
    int fd;
    do {
        fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    } while (fd >= 0 && fd < FIRST_FREE_FD - 1);
    for (int low = 0; low < 3; low++) (void)dup2(fd, low); /* the kernel gave us the console */
}

static void load_module(const char *name) {
    char path[320];
    text(path, sizeof path, MODULES "/%s", name);
    AUTO_CLOSE int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0 || (syscall(SYS_finit_module, file, "", 0) != 0 && errno != EEXIST))
        say("cannot load %s: %s", name, strerror(errno));
    /* What the workloads cannot find they cannot change; and it is their RAM. */
    (void)unlink(path);
}

static int no_dot(const struct dirent *entry) {
    return entry->d_name[0] != '.';
}

static void load_modules(void) {
    struct dirent **names = NULL;
    int count = scandir(MODULES, &names, no_dot, alphasort);
    for (int i = 0; i < count; i++) {
        load_module(names[i]->d_name);
        free(names[i]);
    }
    free(names);
}

static void raise_loopback(void) {
    AUTO_CLOSE int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    struct ifreq request = {.ifr_name = "lo"};
    if (fd < 0 || ioctl(fd, SIOCGIFFLAGS, &request) != 0) return;
    request.ifr_flags = (short)(request.ifr_flags | IFF_UP);
    (void)ioctl(fd, SIOCSIFFLAGS, &request);
}

static void set_hostname(void) {
    char name[65];
    if (!boot_option("box.hostname", name, sizeof name)) text(name, sizeof name, "box");
    if (sethostname(name, strlen(name)) != 0) say("hostname: %s", strerror(errno));
}

void boot(void) {
    (void)umask(022);
    mount_at("devtmpfs", "/dev", MS_NOSUID | MS_NOEXEC, NULL);
    claim_low_descriptors();
    mount_at("proc", "/proc", MS_NOSUID | MS_NOEXEC | MS_NODEV, NULL);
    mount_at("sysfs", "/sys", MS_NOSUID | MS_NOEXEC | MS_NODEV, NULL);
    mount_at("cgroup2", CGROUP_ROOT, MS_NOSUID | MS_NOEXEC | MS_NODEV, NULL);
    (void)mkdir("/image", 0755);
    (void)mkdir(RAM, 0755);
    (void)mkdir(SYSROOT, 0755);
    /* proc(5): -1000 takes PID 1 out of the OOM killer's choice. Its children are put back in. */
    (void)file_put(AT_FDCWD, "/proc/self/oom_score_adj", "-1000");
    (void)reboot(RB_DISABLE_CAD);
    (void)unlink("/init");
    load_modules();
}

void boot_rest(void) {
    raise_loopback();
    set_hostname();
}

bool boot_option(const char *key, char *value, size_t room) {
    char line[4096];
    if (!file_text("/proc/cmdline", line, sizeof line)) return false;
    size_t length = strlen(key);
    char *rest = line;
    for (char *word = strsep(&rest, " "); word != NULL; word = strsep(&rest, " ")) {
        if (strncmp(word, key, length) != 0 || word[length] != '=') continue;
        text(value, room, "%s", word + length + 1);
        return true;
    }
    return false;
}

bool boot_flag(const char *key) {
    char value[4];
    return boot_option(key, value, sizeof value) && strcmp(value, "1") == 0;
}
