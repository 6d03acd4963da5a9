#include "fileops.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base.h"
#include "failure.h"
#include "disks.h"

#define CHUNK 65536u

static uint8_t chunk[CHUNK];

void fileop_read(const struct order *order) {
    struct stat facts;
    int fd = open(order->path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &facts) != 0) child_fail(EXIT_REFUSED, errno, "%s", strerror(errno));
    if (!S_ISREG(facts.st_mode)) child_fail(EXIT_REFUSED, EINVAL, "not a regular file");
    for (;;) {
        ssize_t size = read(fd, chunk, CHUNK);
        if (size < 0) child_fail(EXIT_REFUSED, errno, "%s", strerror(errno));
        if (size == 0) _exit(0);
        if (!write_all(STDOUT_FILENO, chunk, (size_t)size)) _exit(1);
    }
}

/* Bytes copied from standard input; -1 with errno. */
static int64_t copy_input(int to) {
    int64_t total = 0;
    for (;;) {
        ssize_t size = read(STDIN_FILENO, chunk, CHUNK);
        if (size == 0) return total;
        if (size < 0 || !write_all(to, chunk, (size_t)size)) return -1;
        total += size;
    }
}

static const char *fill(int fd, const struct order *order) {
    int64_t size = copy_input(fd);
    if (size < 0) return strerror(errno);
    if ((uint64_t)size != order->size) return "the content was cut short";
    if (fchown(fd, order->uid, order->gid) != 0 || fchmod(fd, order->mode) != 0 || fsync(fd) != 0)
        return strerror(errno);
    return NULL;
}

void fileop_write(const struct order *order) {
    char folder[4096], name[64];
    const char *slash = strrchr(order->path, '/');
    const char *base = slash + 1;
    if (base[0] == 0 || strcmp(base, ".") == 0 || strcmp(base, "..") == 0)
        child_fail(EXIT_REFUSED, EINVAL, "not a file name");
    if ((size_t)(slash - order->path) + 2 > sizeof folder) child_fail(EXIT_REFUSED, ENAMETOOLONG, "path too long");
    text(folder, sizeof folder, "%.*s/", (int)(slash - order->path), order->path);
    int directory = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (directory < 0) child_fail(EXIT_REFUSED, errno, "%s", strerror(errno));

    text(name, sizeof name, ".box-write-%d", (int)getpid());
    (void)unlinkat(directory, name, 0); /* left by a write that was killed */
    int fd = openat(directory, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0) child_fail(EXIT_REFUSED, errno, "%s", strerror(errno));
    const char *problem = fill(fd, order);
    if (problem == NULL && renameat(directory, name, directory, base) != 0) problem = strerror(errno);
    if (problem != NULL) {
        int error = errno != 0 ? errno : EIO;
        (void)unlinkat(directory, name, 0);
        child_fail(EXIT_REFUSED, error, "%s", problem);
    }
    (void)fsync(directory);
    _exit(0);
}

void fileop_resize(const struct order *order) {
    uint64_t bytes = 0;
    char line[32];
    int result = data_grow(order->device, order->size, &bytes);
    if (result < 0) child_fail(EXIT_REFUSED, -result, "%s", strerror(-result));
    text(line, sizeof line, "%llu", (unsigned long long)bytes);
    _exit(write_all(STDOUT_FILENO, line, strlen(line)) ? 0 : 1);
}
