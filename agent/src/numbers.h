/* Files with several names, by their inodes: which number each has in an archive. */
#ifndef BOX_NUMBERS_H
#define BOX_NUMBERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct number {
    uint64_t inode, other; /* `other`: the inode of one of its names in the tree it is compared with; 0: none yet */
    uint32_t value;        /* 0: none yet */
    uint32_t names;        /* of it that are in the archive */
    uint32_t links;        /* as the file system counts them */
    bool used, regrouped;  /* `regrouped`: the names are others than they were */
};

/* Open addressing, at most half full. */
struct numbers {
    struct number *slots;
    size_t room, count;
    uint32_t given;
};

/* What is known of this inode; a new entry where nothing is. NULL: there are too many, or there is no memory. */
struct number *numbers_at(struct numbers *numbers, uint64_t inode);

/* Its number, given now if it has none. */
uint32_t numbers_give(struct numbers *numbers, struct number *number);

#endif
