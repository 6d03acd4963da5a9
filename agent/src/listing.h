/* Directories read a few names at a time, in any number at once; and removing whole trees. */
#ifndef BOX_LISTING_H
#define BOX_LISTING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A directory that is being read. The descriptor is its own. */
struct listing {
    int fd;
    uint8_t *buffer;
    size_t at, end;
};

/* Takes over `fd`. False, with `fd` closed, when there is no memory. */
bool listing_open(struct listing *listing, int fd);
void listing_close(struct listing *listing);
/* Stops reading; the descriptor stays open, and is the caller's again. */
void listing_drop(struct listing *listing);

/* The next name but `.` and `..`, valid until the next call, and its d_type. NULL at the end, with errno 0, or for an
 * error. */
const char *listing_next(struct listing *listing, uint8_t *type);

/* Opens the directory `name` of `at` itself: no link is followed. -1 with errno. */
int folder_open(int at, const char *name);

/* Whether the directory `name` of `at` holds nothing. */
bool folder_is_empty(int at, const char *name);

/* Removes what has this name and all beneath it, however deep: its directories are moved to its top first. 0, also when
 * there is nothing; -1 with errno. */
int tree_remove(int at, const char *name);

/* As many descriptors as a tree can be deep. */
void listing_allow_depth(void);

#endif
