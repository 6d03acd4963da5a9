/*
 * Makes in the present directory what a guest may leave in its /data to be read by others: links that
 * lead away in one step and in two, what must not be opened, what would give rights, what takes room,
 * names that are odd. The first argument is a file that nobody may touch, by its absolute path. With
 * a second one it makes neither the file of 40 GiB nor the directories beyond PATH_MAX. What an
 * ordinary user may not make is left out.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/un.h>
#include <sys/xattr.h>
#include <unistd.h>

#define LEVELS 30 /* of 200 bytes each: 6,000, more than PATH_MAX */

static void must(int result, const char *what) {
    if (result >= 0) return;
    perror(what);
    exit(1);
}

static void file_at(int at, const char *name, const char *words, mode_t mode) {
    int fd = openat(at, name, O_WRONLY | O_CREAT | O_EXCL, 0600);
    must(fd, name);
    must((int)write(fd, words, strlen(words)), name);
    must(fchmod(fd, mode), name);
    close(fd);
}

static void file(const char *name, const char *words, mode_t mode) {
    file_at(AT_FDCWD, name, words, mode);
}

static void links(const char *canary) {
    must(symlink(canary, "absolute"), "absolute");
    must(symlink("../../../../../../..", "up"), "up");
    must(symlink("step2", "step1"), "step1");
    must(symlink("up/etc", "step2"), "step2");
    must(symlink("loop", "loop"), "loop");
    must(symlink("nowhere", "dangling"), "dangling");
    must(linkat(AT_FDCWD, "absolute", AT_FDCWD, "twin-of-link", 0), "twin-of-link");
    file("plain", "exact\n", 0640);
    must(link("plain", "twin"), "twin");
}

static void specials(void) {
    struct sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = "socket"};
    must(mkfifo("fifo", 0666), "fifo");
    must(bind(socket(AF_UNIX, SOCK_STREAM, 0), (struct sockaddr *)&address, sizeof address), "socket");
    (void)mknod("character", S_IFCHR | 0666, makedev(1, 5));
    (void)mknod("block", S_IFBLK | 0666, makedev(7, 0));
}

static void rights(void) {
    static const unsigned char capability[20] = {1, 0, 0, 2, 0, 32};
    static const char fake[] = "104755 0,0 0:0";
    file("setuid", "#!/bin/sh\n", 04755);
    file("setgid", "#!/bin/sh\n", 02755);
    file("capable", "#!/bin/sh\n", 0755);
    (void)setxattr("capable", "security.capability", capability, sizeof capability, 0);
    (void)setxattr("capable", "user.rsync.%stat", fake, sizeof fake - 1, 0);
    (void)setxattr("capable", "user.note", "kept", 4, 0);
    must(mkdir("closed", 0700), "closed");
    file("closed/in", "in\n", 0600);
    must(chmod("closed", 0), "closed");
}

static void names(void) {
    char longest[256] = "";
    memset(longest, 'n', 255);
    file(longest, "long\n", 0644);
    file("a\nb", "newline\n", 0644);
    file("\xff\xfe", "no UTF-8\n", 0644);
    file("\x1b[2J", "escape\n", 0644);
    file("Readme", "lower\n", 0644);
    file("README", "upper\n", 0644);
    file("\xc3\xa9", "composed\n", 0644);
    file("e\xcc\x81", "decomposed\n", 0644);
}

static void room(void) {
    int fd = open("sparse", O_WRONLY | O_CREAT | O_EXCL, 0644);
    must(fd, "sparse");
    must(ftruncate(fd, 40LL << 30), "sparse");
    char data[4096];
    memset(data, 'y', sizeof data);
    must((int)pwrite(fd, data, sizeof data, 20LL << 30), "sparse");
    close(fd);
}

static void depth(void) {
    char name[201] = "";
    int at = open(".", O_RDONLY | O_DIRECTORY);
    memset(name, 'd', 200);
    for (int level = 0; level < LEVELS; level++) {
        must(mkdirat(at, name, 0755), "deep");
        int below = openat(at, name, O_RDONLY | O_DIRECTORY);
        must(below, "deep");
        close(at);
        at = below;
    }
    must(symlinkat("/etc/passwd", at, "link"), "deep link");
    file_at(at, "bottom", "words\n", 0644);
    close(at);
}

int main(int argc, char **argv) {
    if (argc != 2 && argc != 3) return 2;
    (void)umask(0);
    links(argv[1]);
    specials();
    rights();
    names();
    if (argc == 2) room();
    if (argc == 2) depth();
    sync();
    return 0;
}
