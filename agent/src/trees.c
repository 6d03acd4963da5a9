#include "trees.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "archive.h"
#include "attributes.h"
#include "base.h"
#include "content.h"
#include "staged.h"

#define OPEN_FILE (O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_NOATIME | O_CLOEXEC)

bool entry_look(struct entry *entry, int at, const char *name) {
    *entry = (struct entry){.at = at, .name = name};
    if (at >= 0) return fstatat(at, name, &entry->facts, AT_SYMLINK_NOFOLLOW) == 0;
    errno = ENOENT;
    return false;
}

static bool same_time(struct timespec a, struct timespec b) {
    return a.tv_sec == b.tv_sec && a.tv_nsec == b.tv_nsec;
}

/* One disk branched into two: what nobody has touched since is the same to the nanosecond. */
static bool untouched(const struct stat *now, const struct stat *then) {
    return now->st_ino == then->st_ino && now->st_size == then->st_size && now->st_mode == then->st_mode &&
           same_time(now->st_ctim, then->st_ctim) && same_time(now->st_mtim, then->st_mtim);
}

static uint32_t metadata(const struct stat *now, const struct stat *then) {
    uint32_t found = 0;
    if ((now->st_mode & 07777) != (then->st_mode & 07777)) found |= CHANGE_MODE;
    if (now->st_uid != then->st_uid || now->st_gid != then->st_gid) found |= CHANGE_OWNER;
    return found;
}

static uint32_t opened(const struct entry *now, const struct entry *then, int flags) {
    AUTO_CLOSE int one = openat(now->at, now->name, flags);
    AUTO_CLOSE int other = openat(then->at, then->name, flags);
    if (one < 0 || other < 0) return CHANGE_CONTENT;
    uint32_t found = attributes_same(one, other) ? 0 : CHANGE_ATTRIBUTES;
    if (!S_ISREG(now->facts.st_mode)) return found;
    if (now->facts.st_size != then->facts.st_size || !content_same(one, other, now->facts.st_size))
        found |= CHANGE_CONTENT;
    return found;
}

static bool same_target(const struct entry *now, const struct entry *then) {
    static char targets[2][ARCHIVE_TARGET_MAX + 1];
    ssize_t one = readlinkat(now->at, now->name, targets[0], sizeof targets[0]);
    ssize_t other = readlinkat(then->at, then->name, targets[1], sizeof targets[1]);
    return one >= 0 && one == other && memcmp(targets[0], targets[1], (size_t)one) == 0;
}

uint32_t entry_differs(const struct entry *now, const struct entry *then) {
    mode_t kind = now->facts.st_mode & S_IFMT;
    if (kind != (then->facts.st_mode & S_IFMT)) return CHANGE_TYPE;
    if (untouched(&now->facts, &then->facts)) return 0;
    uint32_t found = metadata(&now->facts, &then->facts);
    if (kind == S_IFREG) return found | opened(now, then, OPEN_FILE);
    if (kind == S_IFDIR) return found | opened(now, then, OPEN_FILE | O_DIRECTORY);
    if (kind == S_IFLNK) return (found & CHANGE_OWNER) | (same_target(now, then) ? 0 : CHANGE_CONTENT);
    return found | (now->facts.st_rdev == then->facts.st_rdev ? 0 : CHANGE_CONTENT);
}

uint32_t folder_differs(int now, int then) {
    struct stat one, other;
    if (fstat(now, &one) != 0 || fstat(then, &other) != 0) return 0;
    return metadata(&one, &other) | (attributes_same(now, then) ? 0 : CHANGE_ATTRIBUTES);
}

static void close_level(struct level *level) {
    listing_drop(&level->list);
    close_fd(&level->now);
    close_fd(&level->then);
    free(level->name);
    level->name = NULL;
}

/* Reads the former directory first, where there is one. The listing borrows the descriptor. */
static bool begin(struct level *level) {
    level->in_then = level->then >= 0;
    struct listing list;
    if (!listing_open(&list, level->in_then ? level->then : level->now)) {
        *(level->in_then ? &level->then : &level->now) = -1; /* closed by it */
        return false;
    }
    level->list = list;
    return true;
}

static bool push(struct walk *walk, const char *name, int now, int then) {
    struct level level = {.now = now, .then = then, .list = {.fd = -1}, .told = walk->told, .name = strdup(name)};
    if (level.name == NULL || !begin(&level)) {
        close_level(&level);
        errno = ENOMEM;
        return false;
    }
    walk->levels[walk->depth++] = level;
    return true;
}

static bool enter(struct walk *walk, const struct entry *now, const struct entry *then) {
    const struct entry *known = now != NULL ? now : then;
    if (walk->depth > ARCHIVE_DEPTH_MAX) {
        walk->lost(walk, known, true);
        return true;
    }
    int one = now != NULL ? folder_open(now->at, now->name) : -1;
    int other = then != NULL ? folder_open(then->at, then->name) : -1;
    if ((now != NULL && one < 0) || (then != NULL && other < 0)) {
        close_fd(&one);
        close_fd(&other);
        walk->lost(walk, known, false);
        return true;
    }
    return push(walk, known->name, one, other);
}

static bool is_folder(const struct entry *entry) {
    return S_ISDIR(entry->facts.st_mode);
}

static bool in_then(struct walk *walk, const char *name, uint8_t type) {
    struct entry now, then;
    const struct level *level = &walk->levels[walk->depth - 1];
    bool exists = entry_look(&now, level->now, name);
    if (!exists && errno != ENOENT) return true;
    /* What the directory says of the kind saves a call for each name that is still there. */
    if (exists && (is_folder(&now) || (type != DT_DIR && type != DT_UNKNOWN))) return true;
    if (!entry_look(&then, level->then, name) || (exists && !is_folder(&then))) return true;
    return !walk->gone(walk, &then, exists ? &now : NULL) || !is_folder(&then) || enter(walk, NULL, &then);
}

static bool in_now(struct walk *walk, const char *name) {
    struct entry now, then;
    const struct level *level = &walk->levels[walk->depth - 1];
    if (!entry_look(&now, level->now, name)) {
        walk->lost(walk, &now, false);
        return true;
    }
    bool existed = entry_look(&then, level->then, name);
    uint32_t differs = existed ? entry_differs(&now, &then) : (uint32_t)CHANGE_ADDED;
    if (!walk->here(walk, &now, existed ? &then : NULL, differs) || !is_folder(&now)) return true;
    return enter(walk, &now, existed && is_folder(&then) ? &then : NULL);
}

/* One directory has been read to its end. */
static bool turn(struct walk *walk) {
    struct level *level = &walk->levels[walk->depth - 1];
    listing_drop(&level->list);
    if (level->in_then && level->now >= 0) {
        int then = level->then;
        level->then = -1;
        bool begun = begin(level);
        level->then = then;
        return begun;
    }
    if (walk->depth > 1) walk->left(walk, level);
    close_level(level);
    walk->depth--;
    return true;
}

bool walk_trees(struct walk *walk, int now, int then) {
    bool going = false;
    walk->levels = calloc(ARCHIVE_DEPTH_MAX + 2, sizeof *walk->levels);
    walk->depth = 0;
    if (walk->levels != NULL) going = push(walk, "", now, then);
    while (going && walk->depth > 0) {
        struct level *level = &walk->levels[walk->depth - 1];
        bool former = level->in_then;
        uint8_t type;
        errno = 0;
        const char *name = listing_next(&level->list, &type);
        if (name == NULL) going = errno == 0 && turn(walk);
        else if (walk->is_top && walk->depth == 1 && staged_keeps(former ? level->then : level->now, name)) continue;
        else going = former ? in_then(walk, name, type) : in_now(walk, name);
    }
    int error = errno;
    while (walk->depth > 0) close_level(&walk->levels[--walk->depth]);
    free(walk->levels);
    walk->levels = NULL;
    errno = error;
    return going;
}
