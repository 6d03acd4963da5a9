/* The two disks: root (a squashfs image, with an overlay in RAM unless read-only) and data (ext4). */
#ifndef BOX_DISKS_H
#define BOX_DISKS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SYSROOT "/sysroot"
#define RAM "/ram"
#ifndef DATA /* tests of what works on it take another one */
#define DATA SYSROOT "/data"
#endif

#ifndef BASE /* what /data once was, in a machine that compares the two */
#define BASE "/base"
#endif

#define STATE_SIZE 160u

struct disks {
    char data_device[32];
    bool root_ready;
    bool data_ready;
    char root[STATE_SIZE]; /* as told in HELLO_ACK */
    char data[STATE_SIZE];
};

/* The block device with this virtio serial, as /dev/NAME. */
bool disk_find(const char *serial, char *path, size_t room);

void disks_mount(struct disks *disks, bool readonly);

/* Mounts the disk `base` at BASE, for a child that ends without it. */
void base_mount(void);

/* Grows the mounted file system to its device, waiting up to 2 s for the device to have `want` bytes (0: do not wait).
 * Gives the file system's size in bytes. Negative errno on failure. */
int data_grow(const char *device, uint64_t want, uint64_t *bytes);

/* Syncs and unmounts /data. Negative errno when it is still in use. */
int data_unmount(void);

#endif
