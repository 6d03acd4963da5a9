/* Users and groups out of the guest's /etc/passwd and /etc/group, as text. Pure: the files belong to the workload, so
 * the parsing is bounded and fuzzed, and happens in the command's own process, never in PID 1. */
#ifndef BOX_ACCOUNTS_H
#define BOX_ACCOUNTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define GROUPS_MAX 64u

struct account {
    uint32_t uid, gid;
    char name[64];
    char home[256];
    char shell[256];
    uint32_t groups[GROUPS_MAX]; /* supplementary, without gid */
    size_t group_count;
};

enum account_result { ACCOUNT_FOUND, ACCOUNT_NO_USER, ACCOUNT_NO_GROUP };

/* `wanted` is NAME, UID, NAME:GROUP or UID:GID; empty means root. The two texts need not be valid. */
enum account_result account_find(const char *wanted, const char *passwd, size_t passwd_length, const char *group,
                                 size_t group_length, struct account *out);

#endif
