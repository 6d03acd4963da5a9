/* Host directories: virtiofs file systems mounted where the workloads see them. */
#ifndef BOX_MOUNTS_H
#define BOX_MOUNTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MOUNTS_MAX 20u /* as many virtio-mmio slots as are left */
#define MOUNT_TAG_MAX 36u /* struct virtio_fs_config, include/uapi/linux/virtio_fs.h */
#define MOUNT_PATH_MAX 4096u

struct shared {
    char tag[MOUNT_TAG_MAX + 1];
    char path[MOUNT_PATH_MAX + 1];
    bool readonly;
};

/* What was mounted; a view that has to be made anew gets it again. */
struct mounts {
    struct shared all[MOUNTS_MAX];
    size_t count;
};

/* `tag\0guest path\0mode\0`; the mode is ro or rw. Pure. False: malformed. */
bool mount_parse(const uint8_t *body, size_t length, struct shared *out);

/* The one with this tag, or NULL. */
const struct shared *mounts_find(const struct mounts *mounts, const char *tag);

/* Mounts it in the mount namespace `mount_ns`, making the folders that are missing; a child born in the cgroup `group`
 * does it. False with the reason in `why`. */
bool mount_attach(int mount_ns, int group, const struct shared *wanted, char *why, size_t room);

#endif
