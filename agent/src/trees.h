/* Two directory trees walked side by side: what is in one and not, or not the same, in the other. */
#ifndef BOX_TREES_H
#define BOX_TREES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

#include "listing.h"

/* What has a name in a directory. `at` is -1 where there is no such directory. */
struct entry {
    int at;
    const char *name;
    struct stat facts;
};

/* False: nothing has the name, or nobody can tell what. */
bool entry_look(struct entry *entry, int at, const char *name);

/* What differs between two entries, as enum archive_change; 0: nothing that counts. Times do not. What is on the same
 * inode with the same times of change is taken for the same without being read. */
uint32_t entry_differs(const struct entry *now, const struct entry *then);
/* The same for what is told of open directories: mode, owner and attributes. */
uint32_t folder_differs(int now, int then);

/* A directory that is in one tree, or in both; -1 where it is not. */
struct level {
    int now, then;
    struct listing list;
    bool in_then; /* whether `list` reads that one */
    bool told;    /* whether who walks has told of it; the walk does not look */
    char *name;
};

struct walk {
    struct level *levels; /* the first is the root of both */
    size_t depth;
    bool is_top; /* the roots are those of /data: what is kept there for others is left out */
    const char *root; /* the name of the roots, for who asks; the walk does not look */
    bool told;   /* of the next directory to be entered */
    /* A name that only the former tree has; also a directory that is something else by now, `now`, else NULL. True: go
     * into it. */
    bool (*gone)(struct walk *walk, const struct entry *then, const struct entry *now);
    /* A name of the present tree. `then` is NULL where the former had none. True: go into it. */
    bool (*here)(struct walk *walk, const struct entry *now, const struct entry *then, uint32_t differs);
    void (*left)(struct walk *walk, const struct level *level);
    /* A directory that cannot be read, or is too deep. */
    void (*lost)(struct walk *walk, const struct entry *entry, bool is_deep);
};

/* Walks through both, whose descriptors become its own; either may be -1. What is gone comes first in each directory.
 * False with errno, EIO included: a directory could not be read to its end. */
bool walk_trees(struct walk *walk, int now, int then);

#endif
