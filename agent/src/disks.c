#include "disks.h"

#include <dirent.h>
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

#include "base.h"
#include "failure.h"
#include "staged.h"

/* fs/ext4/ext4.h; not in the exported headers of every libc. Documentation/filesystems/ext4/about.rst. */
#define EXT4_IOC_RESIZE_FS _IOW('f', 16, uint64_t)
#define GROW_WAIT_MS 2000
#define IMAGE "/image"
#define BUILD "/build"
/* One pool for the overlay, /tmp, /run and /dev/shm: together they may take half of the RAM, not half each. */
#define RAM_OPTIONS "size=50%,mode=0755"

static void close_directory(DIR **directory) {
    if (*directory != NULL) closedir(*directory);
}

bool disk_find(const char *serial, char *path, size_t room) {
    __attribute__((cleanup(close_directory))) DIR *blocks = opendir("/sys/block");
    if (blocks == NULL) return false;
    for (struct dirent *entry = readdir(blocks); entry != NULL; entry = readdir(blocks)) {
        char file[320], found[32];
        if (strncmp(entry->d_name, "vd", 2) != 0 || strlen(entry->d_name) > 16) continue;
        text(file, sizeof file, "/sys/block/%s/serial", entry->d_name);
        if (!file_text(file, found, sizeof found) || strcmp(found, serial) != 0) continue;
        text(path, room, "/dev/%.16s", entry->d_name);
        return true;
    }
    return false;
}

static bool failed(char *state, const char *what) {
    text(state, STATE_SIZE, "failed: %s: %s", what, strerror(errno));
    say("%s", state);
    return false;
}

static bool make_folder(const char *path) {
    return mkdir(path, 0755) == 0 || errno == EEXIST;
}

/* `changes` is where whatever differs from the image lies; `kind` is what hello calls such a root. */
static bool mount_overlay(char *state, const char *changes, const char *kind) {
    char upper[32], work[32], options[128];
    text(upper, sizeof upper, "%s/upper", changes);
    text(work, sizeof work, "%s/work", changes);
    if (!make_folder(upper) || !make_folder(work)) return failed(state, "folders for the overlay");
    text(options, sizeof options, "lowerdir=" IMAGE ",upperdir=%s,workdir=%s", upper, work);
    if (mount("overlay", SYSROOT, "overlay", 0, options) != 0) return failed(state, "overlay");
    text(state, STATE_SIZE, "%s", kind);
    return true;
}

/* The layers of a build's disk are kept by the host; the next step goes on with what lies there. */
static bool mount_build(char *state) {
    char device[32];
    if (!disk_find("data", device, sizeof device)) {
        text(state, STATE_SIZE, "failed: no disk to build on");
        return false;
    }
    const unsigned long flags = MS_NOSUID | MS_NODEV | MS_NOATIME;
    if (!make_folder(BUILD) || mount(device, BUILD, "ext4", flags, NULL) != 0) return failed(state, "the build's disk");
    return mount_overlay(state, BUILD, "build");
}

static bool mount_root(char *state, enum root_kind kind) {
    char device[32];
    if (!disk_find("root", device, sizeof device)) {
        text(state, STATE_SIZE, "failed: no disk with the serial \"root\"");
        return false;
    }
    if (mount("ram", RAM, "tmpfs", MS_NOSUID | MS_NODEV, RAM_OPTIONS) != 0) return failed(state, "tmpfs");
    const char *where = kind == ROOT_READONLY ? SYSROOT : IMAGE;
    if (mount(device, where, "squashfs", MS_RDONLY | MS_NODEV, NULL) != 0) return failed(state, "squashfs image");
    if (kind == ROOT_BUILD) return mount_build(state);
    if (kind == ROOT_IN_RAM) return mount_overlay(state, RAM, "overlay");
    text(state, STATE_SIZE, "readonly");
    return true;
}

static bool mount_data(char *state, char *device, size_t room) {
    if (!disk_find("data", device, room)) {
        text(state, STATE_SIZE, "none");
        return false;
    }
    if (mkdir(DATA, 0755) != 0 && errno != EEXIST) return failed(state, "/data is missing in the image");
    if (mount(device, DATA, "ext4", MS_NOSUID | MS_NODEV, NULL) != 0) return failed(state, "ext4 disk");
    AUTO_CLOSE int top = open(DATA, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (top >= 0) staged_recover(top); /* before anybody can use it */
    uint64_t bytes = 0;
    int grown = data_grow(device, 0, &bytes);
    if (grown < 0) {
        /* Still usable at its old size: say so instead of hiding the data. */
        text(state, STATE_SIZE, "ext4 %llu, not grown: %s", (unsigned long long)bytes, strerror(-grown));
    } else {
        text(state, STATE_SIZE, "ext4 %llu", (unsigned long long)bytes);
    }
    return true;
}

void disks_mount(struct disks *disks, enum root_kind kind) {
    disks->root_ready = mount_root(disks->root, kind);
    if (!disks->root_ready) {
        text(disks->data, STATE_SIZE, "failed: no root to mount it in");
        return;
    }
    disks->build_ready = kind == ROOT_BUILD;
    if (disks->build_ready) {
        text(disks->data, STATE_SIZE, "none");
        return;
    }
    disks->data_ready = mount_data(disks->data, disks->data_device, sizeof disks->data_device);
}

void base_mount(void) {
    char device[32];
    if (!disk_find("base", device, sizeof device)) child_fail(EXIT_REFUSED, ENODEV, "no disk with the serial \"base\"");
    if ((mkdir(BASE, 0700) != 0 && errno != EEXIST) ||
        (mount(device, BASE, "ext4", MS_NOSUID | MS_NODEV, NULL) != 0 && errno != EBUSY))
        child_fail(EXIT_REFUSED, errno, "the disk that both began with: %s", strerror(errno));
    AUTO_CLOSE int top = open(BASE, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (top >= 0) staged_recover(top);
}

static int device_bytes(const char *path, uint64_t *bytes) {
    AUTO_CLOSE int device = open(path, O_RDONLY | O_CLOEXEC);
    if (device < 0 || ioctl(device, BLKGETSIZE64, bytes) != 0) return -errno;
    return 0;
}

/* s_blocks_count_lo and _hi of the superblock (Documentation/filesystems/ext4/super.rst); statfs leaves out the file
 * system's own tables. */
static int block_count(const char *path, uint64_t *blocks) {
    uint8_t super[1024];
    AUTO_CLOSE int device = open(path, O_RDONLY | O_CLOEXEC);
    if (device < 0) return -errno;
    if (pread(device, super, sizeof super, 1024) != (ssize_t)sizeof super) return -EIO;
    uint32_t low, high;
    memcpy(&low, super + 0x4, sizeof low);
    memcpy(&high, super + 0x150, sizeof high);
    *blocks = (uint64_t)le32toh(high) << 32 | le32toh(low);
    return 0;
}

int data_grow(const char *path, uint64_t want, uint64_t *bytes) {
    AUTO_CLOSE int root = open(DATA, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    struct statfs facts;
    if (root < 0 || fstatfs(root, &facts) != 0) return -errno;
    uint64_t block = (uint64_t)facts.f_bsize, device = 0;
    if (block == 0) return -EIO;
    int64_t until = now_ms() + GROW_WAIT_MS;
    for (;;) {
        int result = device_bytes(path, &device);
        if (result < 0) return result;
        if (device >= want || now_ms() >= until) break;
        nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
    }
    uint64_t have = 0, blocks = device / block;
    int result = block_count(path, &have);
    if (result < 0) return result;
    *bytes = have * block;
    /* Never smaller: a disk that was cut is not made worse. */
    if (blocks > have) {
        if (ioctl(root, EXT4_IOC_RESIZE_FS, &blocks) != 0) return -errno;
        *bytes = blocks * block;
    }
    return device < want ? -ETIMEDOUT : 0;
}

static int unmount(const char *where) {
    if (umount2(where, UMOUNT_NOFOLLOW) != 0 && errno != EINVAL && errno != ENOENT) return -errno;
    return 0;
}

int disks_unmount(const struct disks *disks) {
    sync();
    if (disks->data_ready) return unmount(DATA);
    if (!disks->build_ready) return 0;
    int result = unmount(SYSROOT);
    if (result == 0) {
        /* What could not be written is told here alone, and a step is only kept whole. */
        AUTO_CLOSE int top = open(BUILD, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (top >= 0 && syncfs(top) != 0) return -EIO;
    }
    return result < 0 ? result : unmount(BUILD);
}
