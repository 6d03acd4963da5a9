/* /data to and from an archive on the disk `transfer`, and the whole root to one. Commands without a program, like those of
 * fileops.h. */
#ifndef BOX_TRANSFER_H
#define BOX_TRANSFER_H

#include <stdbool.h>

_Noreturn void transfer_export(void);
_Noreturn void transfer_export_root(void);
_Noreturn void transfer_import(void);

/* What of /data differs from the base, as an archive of changes; how many entries that has goes to standard output. */
_Noreturn void transfer_changes(bool with_data);
/* The archive of changes into /data, or nothing of it where the two contradict; PROTOCOL.md says what is told. */
_Noreturn void transfer_merge(bool theirs, bool dry);

#endif
