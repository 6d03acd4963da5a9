/* Run in the guest, from a shared directory: asks its kernel for what must not be left on the host, with no library
 * and no program in between. Prints one line for each: NAME ERRNO. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/xattr.h>
#include <unistd.h>

static void tell(const char *name, long result) {
    printf("%s %d\n", name, result < 0 ? errno : 0);
    errno = 0;
}

int main(int argc, char **argv) {
    if (argc != 2 || chdir(argv[1]) != 0) return 1;
    (void)umask(0);
    int file = open("file", O_WRONLY | O_CREAT, 0644);
    tell("plain", file);
    tell("fchmod", fchmod(file, 04755));
    tell("chmod", chmod("file", 06755));
    tell("create", open("created", O_WRONLY | O_CREAT, 04755));
    tell("mkdir", mkdir("folder", 02755));
    tell("device", mknod("device", S_IFCHR | 0666, 0x103));
    tell("block", mknod("block", S_IFBLK | 0666, 0x700));
    tell("fifo", mknod("fifo", S_IFIFO | 0666, 0));
    tell("regular", mknod("regular", S_IFREG | 02755, 0));
    struct sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = "socket"};
    tell("socket", bind(socket(AF_UNIX, SOCK_STREAM, 0), (struct sockaddr *)&address, sizeof address));
    /* struct vfs_cap_data, VFS_CAP_REVISION_2, CAP_SYS_ADMIN permitted and effective */
    const unsigned char capability[20] = {1, 0, 0, 2, 0, 0, 32, 0};
    tell("capability", setxattr("file", "security.capability", capability, sizeof capability, 0));
    tell("attribute", setxattr("file", "user.x", "1", 1, 0));
    tell("handle", (long)syscall(SYS_open_by_handle_at, file, NULL, 0));
    return 0;
}
