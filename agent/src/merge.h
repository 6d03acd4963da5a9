/* An archive of changes brought into /data: what its three files share. One merge in a process.
 *
 * The archive is read twice: once to see what would be done and what stands against it, once to do it. Between the two
 * nothing else has /data. */
#ifndef BOX_MERGE_H
#define BOX_MERGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#include "archive.h"
#include "volume.h"

/* What is to become of what a record tells of. */
enum verdict {
    VERDICT_TAKE,
    VERDICT_SAME, /* /data has it already */
};

/* A directory of the archive that is being read. */
struct place {
    int parent;   /* the one in /data; -1: there is none */
    bool missing; /* the parent has taken it away, or put something else there */
    bool settle;  /* gets what is below when all that is in it is done */
    uint32_t mode, uid, gid;
    struct timespec time;
    uint8_t *body;
    size_t body_size;
    char *name;
    /* Of one that is gone: what was in it, as hashes of names. Of any other: inodes of directories in it that are gone,
     * all that was in them being told, and in whose place something else comes. */
    uint64_t *listed;
    size_t listed_count, listed_room;
};

/* What the fork began with, of the record that follows. */
struct was {
    bool known;
    uint32_t type, mode, uid, gid; /* `type` as in st_mode */
    uint64_t size;
    uint8_t digest[ARCHIVE_DIGEST];
};

/* The file whose data comes. */
struct arriving {
    bool active, differs;
    int fd; /* what is written or compared; -1: neither */
    uint64_t size, until;
    uint32_t number;
    char letter, parents;
    char name[ARCHIVE_NAME_MAX + 1];
};

struct merge {
    struct volume volume;
    struct place *places; /* the first is /data itself */
    size_t depth;
    size_t skipping; /* directories of what is gone that we are in */
    bool theirs, applying;
    bool blocked; /* of the directory that was checked last: `missing`, unless /data has it */
    uint64_t index;  /* of the record, among those that have a verdict */
    uint64_t taken, conflicts;
    uint32_t numbered;
    struct was was;
    struct arriving file;
    struct place file_like; /* what it gets besides */
    int staging, links;
};

_Noreturn void merge_malformed(void);
_Noreturn void merge_stop(const char *what);
struct place *merge_here(struct merge *merge);
void merge_path_each(const struct merge *merge, void (*each)(const char *name));

/* merge_check.c. What a record would do, written down for later; conflicts go to standard output. */
void check_record(struct merge *merge, const struct archive_record *record, const char *name);
/* Opens for a directory what /data has; `place` gets it. */
void check_enter(struct merge *merge, const char *name, struct place *place);
/* What was in a directory that is gone, and the end of such a directory: what /data has in it besides. */
void check_inside(struct merge *merge, const struct archive_record *record, const char *name);
void check_left(struct merge *merge);
void check_data(struct merge *merge, const struct archive_record *record);
void check_finish(struct merge *merge);
enum verdict check_verdict(uint64_t index);
/* The last words on standard output. */
void check_summary(const struct merge *merge);

/* merge_apply.c */
void apply_begin(struct merge *merge);
void apply_record(struct merge *merge, const struct archive_record *record, const char *name, enum verdict verdict);
void apply_enter(struct merge *merge, const struct archive_record *record, const char *name, enum verdict verdict,
                 struct place *place);
void apply_data(struct merge *merge, const struct archive_record *record);
void apply_finish(struct merge *merge);
void apply_leave(struct place *place);
void apply_end(struct merge *merge);

#endif
