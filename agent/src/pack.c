#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "disks.h"
#include "listing.h"
#include "packer.h"
#include "staged.h"
#include "transfer.h"

static struct listing *levels;
static size_t depth;
static bool whole_root;

static void enter(int at, const char *name, const struct stat *facts) {
    if (depth > ARCHIVE_DEPTH_MAX) {
        packer_note(name, REASON_TOO_DEEP);
        return;
    }
    int fd = folder_open(at, name);
    if (fd < 0) {
        packer_note(name, REASON_UNREADABLE);
        return;
    }
    packer_folder(ARCHIVE_FOLDER, fd, name, facts, 0);
    if (!listing_open(&levels[depth++], fd)) packer_stop("no memory for directories");
}

static void other(int at, const char *name) {
    struct stat facts;
    if (fstatat(at, name, &facts, AT_SYMLINK_NOFOLLOW) != 0) packer_note(name, REASON_UNREADABLE);
    else if (S_ISREG(facts.st_mode)) packer_file(at, name, 0);
    else if (S_ISDIR(facts.st_mode)) enter(at, name, &facts);
    else if (S_ISLNK(facts.st_mode)) packer_symlink(at, name, &facts, 0);
    else packer_special(name, &facts);
}

static void walk(void) {
    while (depth > 0) {
        struct listing *level = &levels[depth - 1];
        uint8_t type;
        errno = 0;
        const char *name = listing_next(level, &type);
        if (name != NULL) {
            if (depth == 1 && !whole_root && staged_keeps(level->fd, name)) continue;
            /* What the directory says of the kind saves a call for each file; the file itself is asked again. */
            if (type == DT_REG) packer_file(level->fd, name, 0);
            else other(level->fd, name);
            continue;
        }
        if (errno != 0) packer_stop("reading a directory");
        listing_close(level);
        depth--;
        if (depth > 0) packer_add(&(struct archive_record){.kind = ARCHIVE_LEAVE});
    }
}

static _Noreturn void export_tree(const char *tree) {
    listing_allow_depth();
    levels = calloc(ARCHIVE_DEPTH_MAX + 2, sizeof *levels);
    int top = folder_open(AT_FDCWD, tree);
    if (levels == NULL || top < 0 || !listing_open(&levels[0], top)) packer_stop(whole_root ? "/" : "/data");
    depth = 1;
    packer_begin(false, true);
    walk();
    packer_end();
    _exit(0);
}

void transfer_export(void) {
    export_tree(DATA);
}

void transfer_export_root(void) {
    whole_root = true;
    packer_of_root();
    export_tree(SYSROOT);
}
