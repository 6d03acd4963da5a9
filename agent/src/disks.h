/* The two disks: root (a squashfs image, with an overlay in RAM unless read-only) and data (ext4), which is /data or, in a
 * build, what the overlay writes to. */
#ifndef BOX_DISKS_H
#define BOX_DISKS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifndef SYSROOT /* tests of what works on these two take others */
#define SYSROOT "/sysroot"
#endif
#ifndef DATA
#define DATA SYSROOT "/data"
#endif
#define RAM "/ram"

#ifndef BASE /* what /data once was, in a machine that compares the two */
#define BASE "/base"
#endif

#define STATE_SIZE 160u

struct disks {
    char data_device[32];
    bool root_ready;
    bool data_ready;
    bool build_ready;
    char root[STATE_SIZE]; /* as told in HELLO_ACK */
    char data[STATE_SIZE];
};

/* The block device with this virtio serial, as /dev/NAME. */
bool disk_find(const char *serial, char *path, size_t room);

enum root_kind { ROOT_IN_RAM, ROOT_READONLY, ROOT_BUILD };

void disks_mount(struct disks *disks, enum root_kind kind);

/* Mounts the disk `base` at BASE, for a child that ends without it. */
void base_mount(void);

/* Grows the mounted file system to its device, waiting up to 2 s for the device to have `want` bytes (0: do not wait).
 * Gives the file system's size in bytes. Negative errno on failure. */
int data_grow(const char *device, uint64_t want, uint64_t *bytes);

/* Syncs and unmounts what is written to a disk. Negative errno when it is still in use. */
int disks_unmount(const struct disks *disks);

#endif
