/* The archive that a process writes to the disk `transfer`, record by record, and what of a directory goes into it. */
#ifndef BOX_PACKER_H
#define BOX_PACKER_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>

#include "archive.h"
#include "numbers.h"

/* `changes`: an archive of these, with every extended attribute; `data`: with what is in files. */
void packer_begin(bool changes, bool data);
/* Before that: the archive is of a whole root, an overlay, with every extended attribute. */
void packer_of_root(void);
_Noreturn void packer_stop(const char *what);

void packer_add(const struct archive_record *record);
void packer_note(const char *name, enum archive_reason reason);

/* The regular file of this name, with its data unless it is another name of one that is in the archive. */
void packer_file(int at, const char *name, uint32_t change);
void packer_symlink(int at, const char *name, const struct stat *facts, uint32_t change);
/* A record of `kind` that tells of the directory behind `fd`. */
void packer_folder(enum archive_kind kind, int fd, const char *name, const struct stat *facts, uint32_t change);
/* What an entry was that has changed, in front of its record. `name` is NULL for the directory behind `at` itself. */
void packer_was(int at, const char *name, const struct stat *facts);
/* What is neither file, directory nor link. */
void packer_special(const char *name, const struct stat *facts);

struct numbers *packer_numbers(void);
/* How many entries there are so far. */
uint64_t packer_entries(void);
void packer_end(void);

#endif
