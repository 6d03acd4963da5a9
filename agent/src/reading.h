/* The records of the archive on the disk `transfer`, one after the other. */
#ifndef BOX_READING_H
#define BOX_READING_H

#include <stdbool.h>
#include <stddef.h>

#include "archive.h"
#include "volume.h"

/* Whether the archive begins as it must; what follows are records. False without errno: it does not. */
bool reading_begin(struct volume *volume, bool changes);

/* The next record, which stays valid until the volume moves, and how long it is. False: there is none that makes sense. */
bool reading_next(struct volume *volume, bool changes, struct archive_record *record, size_t *used);

/* Past a record that is no DATA. */
bool reading_skip(struct volume *volume, size_t used);

#endif
