/* What of /data is another than it was, as an archive of changes: PROTOCOL.md. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base.h"
#include "disks.h"
#include "packer.h"
#include "transfer.h"
#include "trees.h"

/* Set for a second walk, which adds the other names of files whose names are others than they were. */
static bool again;

/* The directories on the way here that are themselves as they were. */
static void pass_down(struct walk *walk) {
    for (size_t i = 1; i < walk->depth; i++) {
        struct level *level = &walk->levels[i];
        struct stat facts;
        if (level->told) continue;
        if (fstat(level->now, &facts) != 0) packer_stop("a directory");
        packer_folder(ARCHIVE_PASS, level->now, level->name, &facts, 0);
        level->told = true;
    }
}

static void leave(void) {
    packer_add(&(struct archive_record){.kind = ARCHIVE_LEAVE});
}

static bool gone(struct walk *walk, const struct entry *then, const struct entry *now) {
    bool is_folder = S_ISDIR(then->facts.st_mode);
    if (again) return false;
    pass_down(walk);
    packer_was(then->at, then->name, &then->facts);
    packer_add(&(struct archive_record){
        .kind = is_folder ? ARCHIVE_GONE_FOLDER : ARCHIVE_GONE,
        .mode = then->facts.st_mode & 07777,
        .number = now != NULL && (S_ISREG(now->facts.st_mode) || S_ISLNK(now->facts.st_mode)),
        .name = then->name,
        .name_size = strlen(then->name),
    });
    walk->told = true;
    return true;
}

/* Which names a file has is told by comparing: names of one file now must have been names of one file then. */
static struct number *regroup(const struct entry *now, const struct entry *then) {
    if (now->facts.st_nlink < 2) return NULL;
    struct number *number = numbers_at(packer_numbers(), now->facts.st_ino);
    if (number == NULL) return NULL;
    number->links = (uint32_t)now->facts.st_nlink;
    if (then == NULL || !S_ISREG(then->facts.st_mode)) number->regrouped = true;
    else if (number->other == 0) number->other = then->facts.st_ino;
    else if (number->other != then->facts.st_ino) number->regrouped = true;
    return number;
}

static void file(struct walk *walk, const struct entry *now, const struct entry *then, uint32_t differs) {
    const struct number *number = regroup(now, then);
    if (again && (differs != 0 || number == NULL || !number->regrouped)) return;
    if (!again && differs == 0) return;
    pass_down(walk);
    if (then != NULL) packer_was(then->at, then->name, &then->facts);
    packer_file(now->at, now->name, differs != 0 ? differs : (uint32_t)CHANGE_LINKS);
}

static bool folder(struct walk *walk, const struct entry *now, const struct entry *then, uint32_t differs) {
    bool is_new = then == NULL || !S_ISDIR(then->facts.st_mode);
    walk->told = false;
    if (again) return !is_new;
    if (differs == 0) return true;
    AUTO_CLOSE int fd = folder_open(now->at, now->name);
    pass_down(walk);
    if (fd < 0) {
        packer_note(now->name, REASON_UNREADABLE);
        return false;
    }
    if (then != NULL) packer_was(then->at, then->name, &then->facts);
    packer_folder(ARCHIVE_FOLDER, fd, now->name, &now->facts, differs);
    walk->told = true;
    return true;
}

static bool here(struct walk *walk, const struct entry *now, const struct entry *then, uint32_t differs) {
    if (S_ISDIR(now->facts.st_mode)) return folder(walk, now, then, differs);
    if (S_ISREG(now->facts.st_mode)) {
        file(walk, now, then, differs);
    } else if (differs != 0 && !again) {
        pass_down(walk);
        if (S_ISLNK(now->facts.st_mode) && then != NULL) packer_was(then->at, then->name, &then->facts);
        if (S_ISLNK(now->facts.st_mode)) packer_symlink(now->at, now->name, &now->facts, differs);
        else packer_special(now->name, &now->facts);
    }
    return false;
}

static void left(struct walk *walk, const struct level *level) {
    (void)walk;
    if (level->told) leave();
}

static void lost(struct walk *walk, const struct entry *entry, bool is_deep) {
    if (again) return;
    if (S_ISDIR(entry->facts.st_mode) && walk->told) leave();
    pass_down(walk);
    packer_note(entry->name, is_deep ? REASON_TOO_DEEP : REASON_UNREADABLE);
}

static void walk_both(void) {
    struct walk walk = {.is_top = true, .told = true, .gone = gone, .here = here, .left = left, .lost = lost};
    int now = folder_open(AT_FDCWD, DATA), then = folder_open(AT_FDCWD, BASE);
    struct stat facts, before;
    if (now < 0 || then < 0 || fstat(now, &facts) != 0 || fstat(then, &before) != 0) packer_stop("/data");
    uint32_t differs = again ? 0 : folder_differs(now, then);
    if (differs != 0) packer_was(then, NULL, &before);
    if (differs != 0) packer_folder(ARCHIVE_TOP, now, "", &facts, differs);
    if (!walk_trees(&walk, now, then)) packer_stop("reading a directory");
}

static bool names_are_missing(void) {
    const struct numbers *numbers = packer_numbers();
    for (size_t i = 0; i < numbers->room; i++) {
        const struct number *each = &numbers->slots[i];
        if (each->used && each->regrouped && each->names < each->links) return true;
    }
    return false;
}

void transfer_changes(bool with_data) {
    listing_allow_depth();
    base_mount();
    packer_begin(true, with_data);
    walk_both();
    again = names_are_missing();
    if (again) walk_both();
    packer_end();
    dprintf(STDOUT_FILENO, "%llu", (unsigned long long)packer_entries());
    _exit(0);
}
