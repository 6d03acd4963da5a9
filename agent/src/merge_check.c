#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "attributes.h"
#include "base.h"
#include "content.h"
#include "digest.h"
#include "listing.h"
#include "merge.h"
#include "trees.h"

#define OPEN_FILE (O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_NOATIME | O_CLOEXEC)
/* Of conflicts that are listed; the others are counted. */
#define LISTED_MAX (512u << 10)

static uint8_t *sames; /* a bit for each record that /data has already */
static uint64_t sames_room;
static uint64_t *inodes; /* of numbered files that /data has already, by number */
static uint32_t inodes_room;
static uint8_t listed[LISTED_MAX];
static size_t listed_size;
static bool listed_fits;
static struct merge *current;

static void list_text(const char *text) {
    size_t size = strlen(text);
    listed_fits = listed_fits && size < sizeof listed - listed_size;
    if (!listed_fits) return;
    memcpy(listed + listed_size, text, size);
    listed_size += size;
}

static void list_name(const char *name) {
    list_text("/");
    list_text(name);
}

static void conflict(const char *name, char letter, char parents, const struct walk *walk) {
    size_t before = listed_size;
    current->conflicts++;
    listed_fits = true;
    list_text((const char[]){letter, parents, 0});
    merge_path_each(current, list_name);
    if (walk != NULL) {
        list_name(walk->root);
        for (size_t i = 1; i < walk->depth; i++) list_name(walk->levels[i].name);
    }
    list_name(name);
    if (listed_fits) listed[listed_size++] = 0;
    else listed_size = before;
}

/* -- verdicts */

static void set_same(uint64_t index) {
    if (index / 8 >= sames_room) {
        uint64_t room = (index / 8 + 1) * 2 + 4096;
        uint8_t *larger = realloc(sames, room);
        if (larger == NULL) merge_stop("no memory for what is there already");
        memset(larger + sames_room, 0, room - sames_room);
        sames = larger;
        sames_room = room;
    }
    sames[index / 8] |= (uint8_t)(1u << (index % 8));
}

enum verdict check_verdict(uint64_t index) {
    bool same = index / 8 < sames_room && (sames[index / 8] >> (index % 8) & 1) != 0;
    return same ? VERDICT_SAME : VERDICT_TAKE;
}

static uint64_t inode_of(uint32_t number) {
    return number < inodes_room ? inodes[number] : 0;
}

static void set_inode(uint32_t number, uint64_t inode) {
    if (number >= inodes_room) {
        uint32_t room = number * 2 + 64;
        uint64_t *larger = realloc(inodes, room * sizeof *larger);
        if (larger == NULL) merge_stop("no memory for links");
        memset(larger + inodes_room, 0, (room - inodes_room) * sizeof *larger);
        inodes = larger;
        inodes_room = room;
    }
    inodes[number] = inode;
}

/* -- what the parent has done since: a letter, 0 for nothing */

static bool as_it_was(const struct was *was, const struct entry *now) {
    uint8_t digest[ARCHIVE_DIGEST];
    bool is_link = S_ISLNK(was->type);
    if ((!is_link && (now->facts.st_mode & 07777) != was->mode) || now->facts.st_uid != was->uid) return false;
    if (now->facts.st_gid != was->gid) return false;
    if (S_ISREG(was->type) && (uint64_t)now->facts.st_size != was->size) return false;
    return digest_of(now->at, now->name, &now->facts, digest) && memcmp(digest, was->digest, sizeof digest) == 0;
}

static char parents_change(bool exists, const struct entry *now) {
    const struct was *was = &current->was;
    if (!exists) return was->known ? 'D' : 0;
    if (!was->known) return 'A';
    if ((now->facts.st_mode & S_IFMT) != was->type) return 'T';
    return as_it_was(was, now) ? 0 : 'M';
}

static char letter_of(const struct archive_record *record) {
    if (record->kind == ARCHIVE_GONE || record->kind == ARCHIVE_GONE_FOLDER) return 'D';
    if ((record->change & CHANGE_ADDED) != 0) return 'A';
    return (record->change & CHANGE_TYPE) != 0 ? 'T' : 'M';
}

static bool same_facts(const struct archive_record *record, const struct stat *facts) {
    return (facts->st_mode & 07777) == record->mode && facts->st_uid == record->uid && facts->st_gid == record->gid;
}

static bool same_attributes(const struct archive_record *record, int fd) {
    static uint8_t body[ARCHIVE_BODY_MAX + 1];
    size_t size;
    (void)attributes_get(fd, body, &size, true);
    return size == record->body_size && memcmp(body, record->body, size) == 0;
}

static bool same_folder(const struct archive_record *record, const struct entry *now) {
    if (!S_ISDIR(now->facts.st_mode) || !same_facts(record, &now->facts)) return false;
    AUTO_CLOSE int fd = now->name != NULL ? folder_open(now->at, now->name) : dup(now->at);
    return fd >= 0 && same_attributes(record, fd);
}

static bool same_link(const struct archive_record *record, const struct entry *now) {
    static char target[ARCHIVE_TARGET_MAX + 1];
    if (!S_ISLNK(now->facts.st_mode)) return false;
    if (now->facts.st_uid != record->uid || now->facts.st_gid != record->gid) return false;
    ssize_t size = readlinkat(now->at, now->name, target, sizeof target);
    return size == (ssize_t)record->body_size && memcmp(target, record->body, record->body_size) == 0;
}

/* The file of the parent, to be compared with the data that comes; -1 when it differs already. */
static int same_file(const struct archive_record *record, const struct entry *now) {
    if (!S_ISREG(now->facts.st_mode) || !same_facts(record, &now->facts)) return -1;
    if ((uint64_t)now->facts.st_size != record->size) return -1;
    int fd = openat(now->at, now->name, OPEN_FILE);
    if (fd >= 0 && !same_attributes(record, fd)) close_fd(&fd);
    return fd;
}

static bool same(const struct archive_record *record, const struct entry *now) {
    if (record->kind == ARCHIVE_FOLDER) return same_folder(record, now);
    if (record->kind == ARCHIVE_SYMLINK) return same_link(record, now);
    return record->kind == ARCHIVE_HARD && inode_of(record->number) == now->facts.st_ino;
}

/* -- a directory that is gone, and what the parent has in it besides */

static bool in_gone(struct walk *walk, const struct entry *then, const struct entry *now) {
    (void)walk;
    (void)then;
    (void)now;
    return false;
}

static bool in_here(struct walk *walk, const struct entry *now, const struct entry *then, uint32_t differs) {
    (void)then;
    (void)differs;
    conflict(now->name, 'D', 'A', walk);
    return S_ISDIR(now->facts.st_mode);
}

static void in_left(struct walk *walk, const struct level *level) {
    (void)walk;
    (void)level;
}

static void in_lost(struct walk *walk, const struct entry *entry, bool is_deep) {
    (void)is_deep;
    conflict(entry->name, 'D', 'A', walk);
}

/* All that is in it is the parent's. */
static void list_inside(const struct entry *now) {
    if (!S_ISDIR(now->facts.st_mode)) return;
    struct walk walk = {.root = now->name, .gone = in_gone, .here = in_here, .left = in_left, .lost = in_lost};
    int fd = folder_open(now->at, now->name);
    if (fd >= 0 && !walk_trees(&walk, fd, -1)) merge_stop("reading a directory");
}

static bool check_gone(const struct entry *now) {
    char parents = parents_change(true, now);
    if (parents != 0) conflict(now->name, 'D', parents, NULL);
    return parents == 0;
}

static uint64_t hash_of(const char *name) {
    uint64_t hash = UINT64_C(0xCBF29CE484222325); /* FNV-1a */
    for (; *name != 0; name++) hash = (hash ^ (uint8_t)*name) * UINT64_C(0x100000001B3);
    return hash;
}

static void list_number(struct place *place, uint64_t number) {
    if (place->listed_count == place->listed_room) {
        size_t room = place->listed_room * 2 + 64;
        uint64_t *larger = realloc(place->listed, room * sizeof *larger);
        if (larger == NULL) merge_stop("no memory for names");
        place->listed = larger;
        place->listed_room = room;
    }
    place->listed[place->listed_count++] = number;
}

static bool is_listed(const struct place *place, uint64_t number) {
    for (size_t i = 0; i < place->listed_count; i++)
        if (place->listed[i] == number) return true;
    return false;
}

void check_inside(struct merge *merge, const struct archive_record *record, const char *name) {
    struct place *here = merge_here(merge);
    struct entry now;
    current = merge;
    if (!entry_look(&now, here->parent, name)) return;
    /* Only what the parent has: another name of the same hash, which a fork could choose, hides nothing then. */
    list_number(here, hash_of(name));
    merge->taken++;
    (void)check_gone(&now);
    if (record->kind == ARCHIVE_GONE) list_inside(&now);
}

static int by_hash(const void *one, const void *other) {
    uint64_t a = *(const uint64_t *)one, b = *(const uint64_t *)other;
    return a < b ? -1 : a > b;
}

void check_left(struct merge *merge) {
    struct place *here = merge_here(merge);
    struct listing list;
    uint8_t type;
    const char *name;
    current = merge;
    if (here->parent < 0) return;
    if (here->listed_count > 0) qsort(here->listed, here->listed_count, sizeof *here->listed, by_hash);
    if (!listing_open(&list, folder_open(here->parent, "."))) merge_stop("reading a directory");
    errno = 0;
    while ((name = listing_next(&list, &type)) != NULL) {
        uint64_t hash = hash_of(name);
        struct entry now;
        bool known = here->listed_count > 0 &&
                     bsearch(&hash, here->listed, here->listed_count, sizeof hash, by_hash) != NULL;
        if (!known) {
            conflict(name, 'D', 'A', NULL);
            if (entry_look(&now, here->parent, name)) list_inside(&now);
        }
        errno = 0;
    }
    if (errno != 0) merge_stop("reading a directory");
    listing_close(&list);
}

/* -- the records */

static void check_top(const struct archive_record *record) {
    struct entry now = {.at = current->places[0].parent};
    if (fstat(now.at, &now.facts) != 0) merge_stop("/data");
    if (same_folder(record, &now)) {
        set_same(current->index);
        return;
    }
    current->taken++;
    if (parents_change(true, &now) != 0) conflict(".", 'M', 'M', NULL);
}

void check_record(struct merge *merge, const struct archive_record *record, const char *name) {
    const struct place *here = merge_here(merge);
    struct entry now;
    current = merge;
    merge->blocked = true;
    if (record->kind == ARCHIVE_PASS) return;
    if (record->kind == ARCHIVE_TOP) {
        check_top(record);
        return;
    }
    bool exists = entry_look(&now, here->parent, name);
    char letter = letter_of(record);
    if (letter == 'D') {
        /* Where the name has something else by now, the record of that decides what the parent has made of it. */
        if (!exists || (record->number != 0 && !S_ISDIR(now.facts.st_mode))) {
            set_same(merge->index);
            return;
        }
        merge->taken += record->number == 0; /* else that record counts */
        bool kept = check_gone(&now);
        if (record->kind == ARCHIVE_GONE && kept) list_inside(&now);
        if (record->kind == ARCHIVE_GONE_FOLDER && record->number != 0) list_number(merge_here(merge), now.facts.st_ino);
        return;
    }
    char parents = parents_change(exists, &now);
    if (here->missing && parents == 0) parents = 'D';
    /* It would take the place of a directory of whose content nobody has told. */
    if (exists && parents == 0 && record->kind != ARCHIVE_FOLDER && !is_listed(here, now.facts.st_ino)) list_inside(&now);
    merge->blocked = parents != 0 && merge->was.known;
    if (parents != 0 && exists && same(record, &now)) {
        set_same(merge->index);
        return;
    }
    if (parents != 0 && exists && record->kind == ARCHIVE_FILE) {
        merge->file.fd = same_file(record, &now);
        merge->file.letter = letter;
        merge->file.parents = parents;
        if (merge->file.fd >= 0) return; /* its data decides */
    }
    merge->taken++;
    if (parents != 0) conflict(name, letter, parents, NULL);
}

void check_enter(struct merge *merge, const char *name, struct place *place) {
    const struct place *here = merge_here(merge);
    if (here->parent >= 0) place->parent = folder_open(here->parent, name);
    place->missing = merge->blocked && place->parent < 0;
}

void check_data(struct merge *merge, const struct archive_record *record) {
    struct arriving *file = &merge->file;
    uint64_t offset = record->size, left = record->length;
    if (!content_is_zero(file->fd, (off_t)file->until, (off_t)record->size)) file->differs = true;
    while (left > 0) {
        size_t size;
        const uint8_t *data = volume_some(&merge->volume, left, &size);
        if (data == NULL) merge_malformed();
        if (!file->differs && !content_is(file->fd, data, size, (off_t)offset)) file->differs = true;
        if (!volume_skip(&merge->volume, size)) merge_malformed();
        offset += size;
        left -= size;
    }
}

void check_finish(struct merge *merge) {
    struct arriving *file = &merge->file;
    struct stat facts;
    if (file->fd < 0) return;
    if (!file->differs && !content_is_zero(file->fd, (off_t)file->until, (off_t)file->size)) file->differs = true;
    if (file->differs) {
        merge->taken++;
        conflict(file->name, file->letter, file->parents, NULL);
        return;
    }
    set_same(merge->index - 1);
    if (file->number != 0 && fstat(file->fd, &facts) == 0) set_inode(file->number, facts.st_ino);
}

void check_summary(const struct merge *merge) {
    dprintf(STDOUT_FILENO, "=%llu %llu%c", (unsigned long long)merge->taken, (unsigned long long)merge->conflicts, 0);
    if (!write_all(STDOUT_FILENO, listed, listed_size)) merge_stop("telling of conflicts");
}
