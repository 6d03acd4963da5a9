#include "staged.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "archive.h"
#include "base.h"
#include "listing.h"

/* A directory that comes, and the one of the same name that is there. */
struct pair {
    struct listing from;
    int to;
};

struct merge {
    struct pair *pairs;
    size_t depth;
    bool moving;
    size_t moved;
    char *why;
    size_t room;
};

bool staged_keeps(int top, const char *name) {
    struct stat facts;
    if (strcmp(name, STAGED_NEW) == 0 || strcmp(name, STAGED_READY) == 0) return true;
    return strcmp(name, "lost+found") == 0 && fstatat(top, name, &facts, AT_SYMLINK_NOFOLLOW) == 0 &&
           S_ISDIR(facts.st_mode) && facts.st_nlink == 2 && folder_is_empty(top, name);
}

static bool merge_enter(struct merge *merge, int from, int to) {
    struct pair *pair = &merge->pairs[merge->depth];
    pair->to = to;
    if (from < 0 || to < 0 || !listing_open(&pair->from, from)) {
        close_fd(&pair->to);
        return false;
    }
    merge->depth++;
    return true;
}

static void merge_leave(struct merge *merge) {
    struct pair *pair = &merge->pairs[--merge->depth];
    listing_close(&pair->from);
    close_fd(&pair->to);
}

static bool refuse(struct merge *merge, const char *name, const char *reason) {
    text(merge->why, merge->room, "%.120s %s", name, reason);
    errno = EEXIST;
    return false;
}

/* A directory over a directory: it gets mode and time of the one that comes, as with cp -a. */
static void take_over(const struct pair *pair) {
    struct stat facts;
    if (fstat(pair->from.fd, &facts) != 0) return;
    (void)fchmod(pair->to, facts.st_mode & 07777);
    (void)futimens(pair->to, (struct timespec[2]){facts.st_mtim, facts.st_mtim});
}

static bool merge_one(struct merge *merge, const char *name) {
    struct pair *pair = &merge->pairs[merge->depth - 1];
    struct stat comes, there;
    if (fstatat(pair->from.fd, name, &comes, AT_SYMLINK_NOFOLLOW) != 0) return false;
    bool exists = fstatat(pair->to, name, &there, AT_SYMLINK_NOFOLLOW) == 0;
    if (!exists && errno != ENOENT) return false;
    if (exists && S_ISDIR(comes.st_mode) && S_ISDIR(there.st_mode)) {
        if (merge->depth > ARCHIVE_DEPTH_MAX) return refuse(merge, name, "is too many directories deep");
        return merge_enter(merge, folder_open(pair->from.fd, name), folder_open(pair->to, name));
    }
    if (exists && S_ISDIR(there.st_mode)) return refuse(merge, name, "is a directory in /data, and not in what is imported");
    if (exists && S_ISDIR(comes.st_mode)) return refuse(merge, name, "is no directory in /data, but one in what is imported");
    if (!merge->moving) return true;
    merge->moved++;
    return renameat(pair->from.fd, name, pair->to, name) == 0;
}

static bool merge_walk(struct merge *merge) {
    while (merge->depth > 0) {
        struct pair *pair = &merge->pairs[merge->depth - 1];
        uint8_t type;
        errno = 0;
        const char *name = listing_next(&pair->from, &type);
        if (name != NULL) {
            char kept[256];
            text(kept, sizeof kept, "%s", name);
            if (!merge_one(merge, kept) && errno != ENOENT) return false;
            continue;
        }
        if (errno != 0) return false;
        if (merge->moving && merge->depth > 1) take_over(pair);
        merge_leave(merge);
    }
    return true;
}

/* Walks through both. With `moved`, what comes is moved, and counted; the emptied directories stay. */
static bool merge(int from, int to, size_t *moved, char *why, size_t room) {
    struct merge work = {.moving = moved != NULL, .why = why, .room = room};
    work.pairs = calloc(ARCHIVE_DEPTH_MAX + 2, sizeof *work.pairs);
    bool done = work.pairs != NULL && merge_enter(&work, from, to) && merge_walk(&work);
    int error = errno;
    while (work.depth > 0) merge_leave(&work);
    free(work.pairs);
    if (moved != NULL) *moved = work.moved;
    errno = error;
    return done;
}

bool staged_fits(int data, char *why, size_t room) {
    AUTO_CLOSE int new = folder_open(data, STAGED_NEW);
    text(why, room, "%s", "");
    if (new >= 0 && merge(folder_open(new, STAGED_TREE), folder_open(data, "."), NULL, why, room)) return true;
    if (why[0] == 0) text(why, room, "%s", strerror(errno));
    return false;
}

static bool move(int data) {
    char why[160] = "";
    size_t moved;
    /* Until one round finds nothing: a directory was read while it was emptied, and what is left is removed. */
    do {
        if (merge(folder_open(data, STAGED_READY), folder_open(data, "."), &moved, why, sizeof why)) continue;
        say("an import stays in %s: %s: %s", STAGED_READY, why, strerror(errno));
        return false;
    } while (moved > 0);
    return syncfs(data) == 0 && tree_remove(data, STAGED_READY) == 0;
}

/* Also while PID 1 starts, whose own limit is what every command will have. */
static bool move_deep(int data) {
    struct rlimit before;
    bool known = getrlimit(RLIMIT_NOFILE, &before) == 0;
    listing_allow_depth();
    bool done = move(data);
    int error = errno;
    if (known) (void)setrlimit(RLIMIT_NOFILE, &before);
    errno = error;
    return done;
}

bool staged_apply(int data) {
    AUTO_CLOSE int new = folder_open(data, STAGED_NEW);
    if (new < 0 || syncfs(data) != 0) return false;
    if (renameat2(new, STAGED_TREE, data, STAGED_READY, RENAME_NOREPLACE) != 0 || syncfs(data) != 0) return false;
    return move_deep(data) && tree_remove(data, STAGED_NEW) == 0;
}

void staged_recover(int data) {
    struct stat facts;
    bool is_folder = fstatat(data, STAGED_READY, &facts, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(facts.st_mode);
    if (is_folder) (void)move_deep(data);
    if (fstatat(data, STAGED_NEW, &facts, AT_SYMLINK_NOFOLLOW) == 0 && tree_remove(data, STAGED_NEW) != 0)
        say("%s cannot be removed: %s", STAGED_NEW, strerror(errno));
}
