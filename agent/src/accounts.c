#include "accounts.h"

#include <string.h>

/* A piece of text that is not ended by a zero. */
struct text {
    const char *at;
    size_t length;
};

/* Cuts the part before `separator` off `rest`; false when nothing is left. */
static bool cut(struct text *rest, char separator, struct text *part) {
    if (rest->at == NULL) return false;
    const char *found = rest->length > 0 ? memchr(rest->at, separator, rest->length) : NULL;
    part->at = rest->at;
    if (found == NULL) {
        part->length = rest->length;
        rest->at = NULL;
        rest->length = 0;
    } else {
        part->length = (size_t)(found - rest->at);
        rest->at = found + 1;
        rest->length -= part->length + 1;
    }
    return true;
}

static bool same(struct text a, struct text b) {
    return a.length == b.length && (a.length == 0 || memcmp(a.at, b.at, a.length) == 0);
}

static bool number(struct text text, uint32_t *out) {
    uint64_t value = 0;
    if (text.length == 0 || text.length > 10) return false;
    for (size_t i = 0; i < text.length; i++) {
        if (text.at[i] < '0' || text.at[i] > '9') return false;
        value = value * 10 + (uint64_t)(text.at[i] - '0');
    }
    /* The last number means "leave it as it is" to setresuid(2). */
    if (value >= UINT32_MAX) return false;
    *out = (uint32_t)value;
    return true;
}

static bool copy(char *to, size_t room, struct text from) {
    if (from.length >= room) return false;
    if (from.length > 0) memcpy(to, from.at, from.length);
    to[from.length] = 0;
    return true;
}

/* name:password:uid:gid:gecos:home:shell */
static bool user_line(struct text line, struct text *name, struct account *out) {
    struct text skip, uid, gid, home, shell;
    if (!cut(&line, ':', name) || !cut(&line, ':', &skip) || !cut(&line, ':', &uid)) return false;
    if (!cut(&line, ':', &gid) || !cut(&line, ':', &skip) || !cut(&line, ':', &home)) return false;
    if (!cut(&line, ':', &shell)) shell = (struct text){.at = "", .length = 0};
    if (!number(uid, &out->uid) || !number(gid, &out->gid)) return false;
    return copy(out->name, sizeof out->name, *name) && copy(out->home, sizeof out->home, home) &&
           copy(out->shell, sizeof out->shell, shell);
}

static bool find_user(struct text wanted, struct text file, struct account *out) {
    struct text line, name;
    uint32_t uid = UINT32_MAX;
    bool numeric = number(wanted, &uid);
    while (cut(&file, '\n', &line)) {
        struct account seen = {0};
        if (!user_line(line, &name, &seen)) continue;
        if (same(name, wanted) || (numeric && seen.uid == uid)) {
            *out = seen;
            return true;
        }
    }
    memset(out, 0, sizeof *out);
    if (!numeric) return false;
    out->uid = out->gid = uid;
    return copy(out->name, sizeof out->name, wanted) && copy(out->home, sizeof out->home, (struct text){"/", 1});
}

static void add_group(struct account *out, uint32_t gid) {
    if (gid == out->gid || out->group_count >= GROUPS_MAX) return;
    for (size_t i = 0; i < out->group_count; i++) {
        if (out->groups[i] == gid) return;
    }
    out->groups[out->group_count++] = gid;
}

/* name:password:gid:member,member */
static bool group_line(struct text line, struct text *name, uint32_t *gid, struct text *members) {
    struct text skip, digits;
    if (!cut(&line, ':', name) || !cut(&line, ':', &skip) || !cut(&line, ':', &digits)) return false;
    if (!cut(&line, ':', members)) *members = (struct text){.at = "", .length = 0};
    return number(digits, gid);
}

static void find_memberships(struct text file, struct account *out) {
    struct text line, name, members, member;
    struct text self = {out->name, strlen(out->name)};
    uint32_t gid;
    while (cut(&file, '\n', &line)) {
        if (!group_line(line, &name, &gid, &members)) continue;
        while (cut(&members, ',', &member)) {
            if (self.length > 0 && same(member, self)) add_group(out, gid);
        }
    }
}

static bool find_group(struct text wanted, struct text file, uint32_t *gid) {
    struct text line, name, members;
    uint32_t found;
    while (cut(&file, '\n', &line)) {
        if (group_line(line, &name, &found, &members) && same(name, wanted)) {
            *gid = found;
            return true;
        }
    }
    return number(wanted, gid);
}

enum account_result account_find(const char *wanted, const char *passwd, size_t passwd_length, const char *group,
                                 size_t group_length, struct account *out) {
    struct text rest = {wanted, strlen(wanted)}, user, group_name;
    struct text users = {passwd, passwd_length}, groups = {group, group_length};
    (void)cut(&rest, ':', &user);
    if (user.length == 0) user = (struct text){"root", 4};
    if (!find_user(user, users, out)) {
        if (!same(user, (struct text){"root", 4})) return ACCOUNT_NO_USER;
        /* An image without /etc/passwd still has a root. */
        memset(out, 0, sizeof *out);
        (void)copy(out->name, sizeof out->name, user);
        (void)copy(out->home, sizeof out->home, (struct text){"/root", 5});
    }
    if (cut(&rest, ':', &group_name)) {
        /* A group that is named replaces all the user's groups: exactly what was asked for, nothing more. */
        return find_group(group_name, groups, &out->gid) ? ACCOUNT_FOUND : ACCOUNT_NO_GROUP;
    }
    find_memberships(groups, out);
    return ACCOUNT_FOUND;
}
