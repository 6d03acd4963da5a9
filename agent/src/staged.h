/* An import on its way: what was unpacked is moved to its place when all of it has come, and not before.
 *
 * It lies in /data/.box-import-new until it is whole, then in /data/.box-import-ready while it is being moved. So
 * whatever the moment at which the machine stops: the next start removes the first, and goes on with the second. */
#ifndef BOX_STAGED_H
#define BOX_STAGED_H

#include <stdbool.h>
#include <stddef.h>

#define STAGED_NEW ".box-import-new"
#define STAGED_READY ".box-import-ready"
#define STAGED_TREE "tree"   /* in STAGED_NEW: what is unpacked */
#define STAGED_LINKS "links" /* and a name of each file that has several, by its number */

/* Whether the file system or an import keeps this name at the top for itself. */
bool staged_keeps(int top, const char *name);

/* Finishes what an earlier import left in the directory behind `data`. Nothing else may use it meanwhile. */
void staged_recover(int data);

/* Whether the tree can be merged into the directory behind `data`: a directory only where there is none or another one,
 * anything else not over a directory. False with the first name that cannot in `why`. */
bool staged_fits(int data, char *why, size_t room);

/* Makes the tree count, and moves it to its place. False with errno. */
bool staged_apply(int data);

#endif
