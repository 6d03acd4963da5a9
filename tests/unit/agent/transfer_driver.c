/* The agent's export and import on a directory of the host, under sanitizers: /data is `data` in the current directory,
 * what it once was is `base`, the disk is the file `transfer`.
 *   transfer_driver export | root | import | recover | cut N     cut: an import that ends before its Nth rename
 *   transfer_driver changes 0|1 | merge theirs|dry|both|none */
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base.h"
#include "disks.h"
#include "failure.h"
#include "listing.h"
#include "staged.h"
#include "transfer.h"

static long renames_left = -1;

bool disk_find(const char *serial, char *path, size_t room) {
    text(path, room, "%s", serial);
    return true;
}

void child_fail(enum exit_kind kind, int error, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fprintf(stderr, "%d %d ", (int)kind, error);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    _exit(127);
}

void base_mount(void) {
}

/* Both are what the linker gives the agent's own calls (--wrap). */
int __real_renameat(int from, const char *old, int to, const char *new);
int __wrap_renameat(int from, const char *old, int to, const char *new);
int __wrap_renameat(int from, const char *old, int to, const char *new) {
    if (renames_left == 0) _exit(9);
    if (renames_left > 0) renames_left--;
    return __real_renameat(from, old, to, new);
}

int main(int argc, char **argv) {
    if (argc == 2 && strcmp(argv[1], "export") == 0) transfer_export();
    if (argc == 2 && strcmp(argv[1], "root") == 0) transfer_export_root();
    if (argc == 2 && strcmp(argv[1], "import") == 0) transfer_import();
    if (argc == 3 && strcmp(argv[1], "changes") == 0) transfer_changes(argv[2][0] == '1');
    if (argc == 3 && strcmp(argv[1], "merge") == 0) {
        bool both = strcmp(argv[2], "both") == 0;
        transfer_merge(both || strcmp(argv[2], "theirs") == 0, both || strcmp(argv[2], "dry") == 0);
    }
    if (argc == 3 && strcmp(argv[1], "cut") == 0) {
        renames_left = strtol(argv[2], NULL, 10);
        transfer_import();
    }
    if (argc == 2 && strcmp(argv[1], "recover") == 0) {
        int data = folder_open(AT_FDCWD, DATA);
        if (data < 0) return 1;
        staged_recover(data);
        return 0;
    }
    return 2;
}
