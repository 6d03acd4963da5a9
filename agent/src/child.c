#include "child.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/sched.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "accounts.h"
#include "base.h"
#include "failure.h"
#include "fileops.h"
#include "transfer.h"

#define DEFAULT_PATH "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
#define ACCOUNTS_SIZE (1u << 20)
/* execve(2): arguments and environment may take a quarter of the soft stack limit, at most 6 MiB. */
#define ARGUMENTS_AT_DEFAULT_STACK (3u << 19)
#define LARGE_STACK (32u << 20)
#define ADDED_MAX 5u

/* A file of the workload's, read without trusting what it is. Empty when it cannot be read. */
static size_t read_accounts(const char *path, char *to) {
    struct stat facts;
    AUTO_CLOSE int fd = open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &facts) != 0 || !S_ISREG(facts.st_mode)) return 0;
    size_t have = 0;
    while (have < ACCOUNTS_SIZE) {
        ssize_t size = read(fd, to + have, ACCOUNTS_SIZE - have);
        if (size <= 0) break;
        have += (size_t)size;
    }
    return have;
}

static void become(const struct order *order, struct account *account) {
    char *passwd = malloc(ACCOUNTS_SIZE), *group = malloc(ACCOUNTS_SIZE);
    if (passwd == NULL || group == NULL) child_fail(EXIT_REFUSED, ENOMEM, "no memory");
    size_t passwd_size = read_accounts("/etc/passwd", passwd);
    size_t group_size = read_accounts("/etc/group", group);
    enum account_result result = account_find(order->user, passwd, passwd_size, group, group_size, account);
    free(passwd);
    free(group);
    if (result == ACCOUNT_NO_USER) child_fail(EXIT_REFUSED, ENOENT, "no user %.60s in this guest", order->user);
    if (result == ACCOUNT_NO_GROUP) child_fail(EXIT_REFUSED, ENOENT, "no group of %.60s in this guest", order->user);

    gid_t groups[GROUPS_MAX];
    for (size_t i = 0; i < account->group_count; i++) groups[i] = account->groups[i];
    if (setgroups(account->group_count, groups) != 0 || setresgid(account->gid, account->gid, account->gid) != 0 ||
        setresuid(account->uid, account->uid, account->uid) != 0)
        child_fail(EXIT_REFUSED, errno, "cannot become user %.60s: %s", order->user, strerror(errno));
}

static void enter_directory(const struct order *order, const struct account *account) {
    if (order->cwd[0] == 0) {
        if (account->home[0] == '/' && chdir(account->home) == 0) return;
        if (chdir("/") != 0) child_fail(EXIT_REFUSED, errno, "/: %s", strerror(errno));
    } else if (chdir(order->cwd) != 0) {
        child_fail(EXIT_REFUSED, errno, "working directory %.100s: %s", order->cwd, strerror(errno));
    }
}

static bool is_set(char *const *env, const char *name) {
    size_t length = strlen(name);
    for (; *env != NULL; env++) {
        if (strncmp(*env, name, length) == 0 && (*env)[length] == '=') return true;
    }
    return false;
}

/* NAME=value for what the request leaves out; the strings live until execve. */
static void add_defaults(char **env, uint32_t count, const struct account *account) {
    static char lines[ADDED_MAX][300];
    const char *values[ADDED_MAX][2] = {
        {"PATH", DEFAULT_PATH},
        {"HOME", account->home[0] != 0 ? account->home : "/"},
        {"USER", account->name},
        {"LOGNAME", account->name},
        {"SHELL", account->shell[0] != 0 ? account->shell : "/bin/sh"},
    };
    for (size_t i = 0; i < ADDED_MAX; i++) {
        if (is_set(env, values[i][0])) continue;
        text(lines[i], sizeof lines[i], "%s=%s", values[i][0], values[i][1]);
        env[count++] = lines[i];
        env[count] = NULL;
    }
}

static const char *value_of(char *const *env, const char *name) {
    size_t length = strlen(name);
    for (; *env != NULL; env++) {
        if (strncmp(*env, name, length) == 0 && (*env)[length] == '=') return *env + length + 1;
    }
    return "";
}

static _Noreturn void not_started(const struct order *order, const char *path, int error) {
    const char *program = order->strings;
    if (error == E2BIG)
        child_fail(EXIT_NOT_EXECUTABLE, E2BIG,
                   "argument list too long: %zu bytes in %u arguments and variables; Linux takes 6 MiB in all and "
                   "128 KiB in one",
                   order->strings_size, order->argc + order->envc);
    if (error == ENOENT && access(path, F_OK) == 0)
        child_fail(EXIT_NOT_EXECUTABLE, error, "%.100s: its interpreter is missing", program);
    if (error == ENOENT || error == ENOTDIR)
        child_fail(EXIT_NOT_FOUND, error, "%.100s: not found", program);
    if (error == ENOEXEC)
        child_fail(EXIT_NOT_EXECUTABLE, error, "%.100s: not a program for this machine, and no #! line", program);
    child_fail(EXIT_NOT_EXECUTABLE, error, "%.100s: %s", program, strerror(error));
}

/* execvpe(3) with two differences: no shell for files without a header, and the reason is kept. */
static _Noreturn void execute(const struct order *order, char **argv, char **env) {
    if (strchr(argv[0], '/') != NULL || argv[0][0] == 0) {
        execve(argv[0], argv, env);
        not_started(order, argv[0], errno);
    }
    int refused = ENOENT;
    char path[4352], blocked[4352] = "";
    const char *search = value_of(env, "PATH");
    for (;;) {
        size_t length = strcspn(search, ":");
        if (length + strlen(argv[0]) + 2 <= sizeof path) {
            text(path, sizeof path, "%.*s%s%s", (int)length, search, length > 0 ? "/" : "", argv[0]);
            execve(path, argv, env);
            bool absent = errno == ENOENT || errno == ENOTDIR || errno == ENAMETOOLONG || errno == ELOOP;
            if (errno == ENOENT && access(path, F_OK) == 0) absent = false;
            if (!absent && errno != EACCES) not_started(order, path, errno);
            if (!absent && refused == ENOENT) {
                refused = errno;
                text(blocked, sizeof blocked, "%s", path);
            }
        }
        if (search[length] == 0) break;
        search += length + 1;
    }
    not_started(order, blocked, refused);
}

static _Noreturn void run_program(const struct order *order) {
    struct account account;
    become(order, &account);
    enter_directory(order, &account);

    size_t pointers = (size_t)order->argc + order->envc + ADDED_MAX + 2;
    char **vector = calloc(pointers, sizeof *vector);
    /* execve(2) takes pointers to what it does not change. */
    char *strings = malloc(order->strings_size + 1);
    if (vector == NULL || strings == NULL) child_fail(EXIT_REFUSED, ENOMEM, "no memory for the arguments");
    memcpy(strings, order->strings, order->strings_size);
    char **argv = vector, **env = vector + order->argc + 1;
    char *at = strings;
    for (uint32_t i = 0; i < order->argc; i++, at += strlen(at) + 1) argv[i] = at;
    for (uint32_t i = 0; i < order->envc; i++, at += strlen(at) + 1) env[i] = at;
    add_defaults(env, order->envc, &account);

    struct rlimit stack;
    if (order->strings_size + pointers * sizeof *vector > ARGUMENTS_AT_DEFAULT_STACK &&
        getrlimit(RLIMIT_STACK, &stack) == 0 && stack.rlim_cur < LARGE_STACK) {
        stack.rlim_cur = stack.rlim_max < LARGE_STACK ? stack.rlim_max : LARGE_STACK;
        (void)setrlimit(RLIMIT_STACK, &stack);
    }
    execute(order, argv, env);
}

void child_run(const struct order *order) {
    sigset_t none;
    sigemptyset(&none);
    (void)sigprocmask(SIG_SETMASK, &none, NULL);
    (void)setsid();
    (void)file_put(AT_FDCWD, "/proc/self/oom_score_adj", "0");
    /* In the agent's mounts: the view may have unmounted it. */
    if (order->kind == REQUEST_RESIZE) fileop_resize(order);
    if (order->kind == REQUEST_EXPORT) transfer_export();
    if (order->kind == REQUEST_IMPORT) transfer_import();
    if (order->kind == REQUEST_CHANGES) transfer_changes((order->flags & CHANGES_WITH_DATA) != 0);
    if (order->kind == REQUEST_MERGE) transfer_merge((order->flags & MERGE_THEIRS) != 0, (order->flags & MERGE_DRY) != 0);
    if (order->kind == REQUEST_EXPORT_ROOT) {
        /* What a step left running changes nothing any more. Only in the workloads' PID namespace, where our parent cannot
         * be seen, is everybody else one of them. */
        if (getppid() == 0) (void)kill(-1, SIGKILL);
        transfer_export_root();
    }
    if (setns(CHILD_MOUNTS_FD, CLONE_NEWNS) != 0 || unshare(CLONE_NEWCGROUP) != 0)
        child_fail(EXIT_REFUSED, errno, "cannot enter the workloads' namespace: %s", strerror(errno));
    close(CHILD_MOUNTS_FD);
    if (order->kind == REQUEST_READ) fileop_read(order);
    if (order->kind == REQUEST_WRITE) fileop_write(order);
    run_program(order);
}
