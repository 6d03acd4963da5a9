#include "resolver.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base.h"
#include "boot.h"
#include "disks.h"

#define IN_RAM RAM "/resolv.conf"
#define FRESH ".resolv.conf.box"

/* openat2(2) below a directory, whose links lead nowhere else: the image may hold any. */
static int open_below(int root, const char *path, uint64_t flags) {
    struct open_how how = {.flags = flags | O_CLOEXEC, .resolve = RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS};
    return (int)syscall(SYS_openat2, root, path, &how, sizeof how);
}

/* The file of a root that cannot be written; and a build's name servers are not the image's. */
static bool is_in_ram(void) {
    return (boot_flag("box.readonly") || boot_flag("box.build")) && boot_flag("box.network");
}

void resolver_attach(void) {
    if (!is_in_ram()) return;
    AUTO_CLOSE int root = open(".", O_PATH | O_DIRECTORY | O_CLOEXEC);
    AUTO_CLOSE int file = open(IN_RAM, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    AUTO_CLOSE int target = open_below(root, "etc/resolv.conf", O_PATH);
    if (file < 0 || target < 0) return;
    char path[40];
    text(path, sizeof path, "/proc/self/fd/%d", target);
    if (mount(IN_RAM, path, NULL, MS_BIND, NULL) != 0) say("resolv.conf: %s", strerror(errno));
}

static bool failed(char *why, size_t room, const char *what) {
    text(why, room, "/etc/resolv.conf: %s: %s", what, strerror(errno));
    return false;
}

static bool write_in_ram(const char *lines) {
    AUTO_CLOSE int file = open(IN_RAM, O_WRONLY | O_TRUNC | O_CLOEXEC);
    return file >= 0 && write_all(file, lines, strlen(lines));
}

/* Replaces whatever has that name, a link too: what it leads to is the image's business. */
static bool write_in_root(const char *lines) {
    AUTO_CLOSE int root = open(SYSROOT, O_PATH | O_DIRECTORY | O_CLOEXEC);
    AUTO_CLOSE int folder = open_below(root, "etc", O_PATH | O_DIRECTORY);
    if (folder < 0) return false;
    (void)unlinkat(folder, FRESH, 0);
    AUTO_CLOSE int file = openat(folder, FRESH, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
    return file >= 0 && fchmod(file, 0644) == 0 && write_all(file, lines, strlen(lines)) &&
           renameat(folder, FRESH, folder, "resolv.conf") == 0;
}

bool resolver_write(const struct network *wanted, char *why, size_t room) {
    char lines[NETWORK_DNS_MAX * 64 + 64];
    int used = 0;
    lines[0] = 0;
    for (unsigned i = 0; i < wanted->dns_count; i++)
        used += snprintf(lines + used, sizeof lines - (size_t)used, "nameserver %s\n", wanted->dns[i]);
    bool done = is_in_ram() ? write_in_ram(lines) : write_in_root(lines);
    return done || failed(why, room, "cannot be written");
}
