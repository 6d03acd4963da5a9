#include "listing.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "archive.h"
#include "base.h"

/* Small, since there is one for each directory on the way down. */
#define LISTING_SIZE 4096u
#define FIXED offsetof(struct dirent64, d_name)

bool listing_open(struct listing *listing, int fd) {
    *listing = (struct listing){.fd = fd, .buffer = malloc(LISTING_SIZE)};
    if (listing->buffer != NULL) return true;
    close_fd(&listing->fd);
    errno = ENOMEM;
    return false;
}

void listing_drop(struct listing *listing) {
    free(listing->buffer);
    *listing = (struct listing){.fd = -1};
}

void listing_close(struct listing *listing) {
    close_fd(&listing->fd);
    listing_drop(listing);
}

const char *listing_next(struct listing *listing, uint8_t *type) {
    for (;;) {
        if (listing->at == listing->end) {
            long size = syscall(SYS_getdents64, listing->fd, listing->buffer, LISTING_SIZE);
            if (size <= 0) {
                if (size == 0) errno = 0;
                return NULL;
            }
            listing->at = 0;
            listing->end = (size_t)size;
        }
        const uint8_t *entry = listing->buffer + listing->at;
        uint16_t length;
        memcpy(&length, entry + offsetof(struct dirent64, d_reclen), sizeof length);
        *type = entry[offsetof(struct dirent64, d_type)];
        listing->at += length;
        const char *name = (const char *)entry + FIXED;
        if (strcmp(name, ".") != 0 && strcmp(name, "..") != 0) return name;
    }
}

int folder_open(int at, const char *name) {
    return openat(at, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_NOATIME | O_CLOEXEC);
}

bool folder_is_empty(int at, const char *name) {
    struct listing listing;
    uint8_t type;
    int fd = folder_open(at, name);
    if (fd < 0 || !listing_open(&listing, fd)) return false;
    errno = 0;
    bool empty = listing_next(&listing, &type) == NULL && errno == 0;
    listing_close(&listing);
    return empty;
}

/* Takes everything but directories out of `from`; those go to `top` under new names, unless they are there. */
static int empty_into(int from, int top, bool is_top, unsigned *moved) {
    struct listing listing;
    uint8_t type;
    if (!listing_open(&listing, from)) return -1;
    const char *name;
    int result = 0;
    while (result == 0 && (name = listing_next(&listing, &type)) != NULL) {
        if (unlinkat(from, name, 0) == 0 || unlinkat(from, name, AT_REMOVEDIR) == 0 || is_top) continue;
        char new[32];
        do {
            text(new, sizeof new, ".removed-%u", (*moved)++);
        } while ((result = renameat2(from, name, top, new, RENAME_NOREPLACE)) != 0 && errno == EEXIST);
    }
    int error = errno;
    listing_close(&listing);
    errno = error;
    return result;
}

int tree_remove(int at, const char *name) {
    if (unlinkat(at, name, 0) == 0 || unlinkat(at, name, AT_REMOVEDIR) == 0 || errno == ENOENT) return 0;
    AUTO_CLOSE int top = folder_open(at, name);
    if (top < 0) return -1;
    unsigned moved = 0;
    for (;;) {
        int again = folder_open(top, ".");
        if (again < 0 || empty_into(again, top, true, &moved) != 0) return -1;
        if (unlinkat(at, name, AT_REMOVEDIR) == 0) return 0;
        if (errno != ENOTEMPTY) return -1;
        /* Whatever is left in it are directories. */
        struct listing listing;
        uint8_t type;
        again = folder_open(top, ".");
        if (again < 0 || !listing_open(&listing, again)) return -1;
        const char *each;
        bool any = false;
        while ((each = listing_next(&listing, &type)) != NULL) {
            int below = folder_open(top, each);
            if (below < 0 || empty_into(below, top, false, &moved) != 0) break;
            any = unlinkat(top, each, AT_REMOVEDIR) == 0 || any;
        }
        listing_close(&listing);
        if (!any) return -1;
    }
}

void listing_allow_depth(void) {
    const rlim_t wanted = 2u * ARCHIVE_DEPTH_MAX + 256u;
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) != 0 || files.rlim_cur >= wanted) return;
    files.rlim_cur = wanted;
    if (files.rlim_max >= wanted && setrlimit(RLIMIT_NOFILE, &files) == 0) return;
    struct rlimit more = {wanted, wanted};
    if (setrlimit(RLIMIT_NOFILE, &more) == 0) return;
    files.rlim_cur = files.rlim_max; /* outside of a guest, where PID 1 may do anything */
    (void)setrlimit(RLIMIT_NOFILE, &files);
}
