/* Stands in a VMM's place: the product launches it through the whole jail, with the descriptors of a VMM.
 *
 * It does nothing by itself. Whoever connects to the monitor's socket and knows the NONCE of this run gives it
 * a line of orders:
 *
 *   NONCE relay           joins this connection with the next one of the controller to the agent's socket
 *   NONCE calls           then lines of system calls, one answer of several lines for each
 *
 * A line of calls is "self" or "child" (where they are made) and up to 8 calls apart by ";". A call is its number, "i"
 * before it for the 32-bit entry, and up to six words: a number, =HEX (the address of these bytes), @HEX (the same, and
 * what they are afterwards is part of the answer) or $K (what call K returned). It answers "RESULT HEX..." for each call
 * that returned, the negative errno for a failed one, and last "ended", "timeout" or "signal N" (a child only).
 *
 * With --calls it serves standard input and output in the same way, for trying the same without a jail. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MONITOR = 3, AGENT = 5, LINE = 32768, WORDS = 6, CALLS = 8, ANSWER = 65536, WAIT_MS = 2000 };

struct word {
    long value;
    int result; /* of which earlier call, -1: none */
    uint8_t *out;
    size_t size;
};

struct call {
    long number;
    int old_entry;
    struct word words[WORDS];
};

/* Each run of the suite writes 32 letters of its own over these, in its copy of the program. */
static volatile const char nonce[] = "the-nonce-of-this-run-goes-here!";

static uint8_t memory[LINE * 4];
static size_t taken;
static char answer[ANSWER];
static size_t said;

static int say(int fd, const char *text, size_t size) {
    for (size_t at = 0; at < size;) {
        ssize_t done = write(fd, text + at, size - at);
        if (done <= 0) return -1;
        at += (size_t)done;
    }
    return 0;
}

/* One line without its end, byte by byte: what follows it belongs to somebody else. */
static int line_from(int fd, char *line) {
    for (size_t at = 0; at + 1 < LINE; at++) {
        if (read(fd, line + at, 1) != 1) return -1;
        if (line[at] == '\n') {
            line[at] = 0;
            return (int)at;
        }
    }
    return -1;
}

static uint8_t *room(size_t size) {
    size = (size + 15) & ~(size_t)15;
    if (taken + size > sizeof memory) exit(3);
    uint8_t *found = memory + taken;
    memset(found, 0, size);
    taken += size;
    return found;
}

static int digit(char text) { return text <= '9' ? text - '0' : text - 'a' + 10; }

static void take_word(struct word *made, const char *text) {
    *made = (struct word){.result = -1};
    if (*text == '$') {
        made->result = atoi(text + 1);
    } else if (*text == '=' || *text == '@') {
        size_t size = strlen(text + 1) / 2;
        uint8_t *bytes = room(size + 1);
        for (size_t i = 0; i < size; i++) bytes[i] = (uint8_t)(digit(text[1 + 2 * i]) << 4 | digit(text[2 + 2 * i]));
        made->value = (long)bytes;
        if (*text == '@') made->out = bytes, made->size = size;
    } else {
        made->value = (long)strtoll(text, NULL, 10);
    }
}

static int take_calls(struct call *calls, char *text) {
    int count = 0;
    char *rest = text, *one;
    taken = 0;
    while (count < CALLS && (one = strsep(&rest, ";")) != NULL) {
        struct call *made = &calls[count];
        memset(made, 0, sizeof *made);
        char *state = NULL, *word = strtok_r(one, " ", &state);
        if (word == NULL) continue;
        made->old_entry = *word == 'i';
        made->number = strtol(word + made->old_entry, NULL, 10);
        for (int i = 0; i < WORDS; i++) {
            word = word ? strtok_r(NULL, " ", &state) : NULL;
            take_word(&made->words[i], word ? word : "0");
        }
        count++;
    }
    return count;
}

static long enter(const struct call *one, const long *a) {
    long found = one->number;
    if (one->old_entry) {
        __asm__ volatile("int $0x80" : "+a"(found) : "b"(a[0]), "c"(a[1]), "d"(a[2]), "S"(a[3]), "D"(a[4]) : "memory");
        return (int)found;
    }
    register long r10 __asm__("r10") = a[3];
    register long r8 __asm__("r8") = a[4];
    register long r9 __asm__("r9") = a[5];
    __asm__ volatile("syscall"
                     : "+a"(found)
                     : "D"(a[0]), "S"(a[1]), "d"(a[2]), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    return found;
}

static void perform(const struct call *calls, int count, int fd) {
    long results[CALLS] = {0};
    long self = syscall(SYS_getpid);
    for (int n = 0; n < count; n++) {
        long arguments[WORDS];
        for (int i = 0; i < WORDS; i++) {
            const struct word *word = &calls[n].words[i];
            arguments[i] = word->result < 0 ? word->value : results[word->result % CALLS];
        }
        results[n] = enter(&calls[n], arguments);
        if (syscall(SYS_getpid) != self) syscall(SYS_exit_group, 0); /* a process that the call made */
        said = (size_t)sprintf(answer, "%ld", results[n]);
        for (int i = 0; i < WORDS; i++) {
            const struct word *word = &calls[n].words[i];
            if (word->out == NULL) continue;
            answer[said++] = ' ';
            for (size_t at = 0; at < word->size && said + 4 < ANSWER; at++)
                said += (size_t)sprintf(answer + said, "%02x", word->out[at]);
        }
        answer[said++] = '\n';
        say(fd, answer, said);
    }
}

/* fork(2) is refused to a VMM: this works while somebody outside suspends the filter of this very thread. What the
 * child is refused ends the child alone. */
static int in_child(const struct call *calls, int count, int fd) {
    int pipe_ends[2], status = 0;
    char part[4096], last[32];
    if (pipe2(pipe_ends, O_CLOEXEC) != 0) return -1;
    pid_t child = fork();
    if (child == 0) {
        close(pipe_ends[0]);
        perform(calls, count, pipe_ends[1]);
        syscall(SYS_exit_group, 0);
    }
    close(pipe_ends[1]);
    struct pollfd wanted = {.fd = pipe_ends[0], .events = POLLIN};
    int waited, late = 0;
    ssize_t got = 1;
    while (got > 0 && (waited = poll(&wanted, 1, WAIT_MS)) > 0) {
        got = read(pipe_ends[0], part, sizeof part);
        if (got > 0 && say(fd, part, (size_t)got) != 0) break;
    }
    late = got > 0;
    close(pipe_ends[0]);
    if (late) kill(child, SIGKILL);
    if (child < 0 || waitpid(child, &status, __WALL) != child) return -1;
    while (waitpid(-1, NULL, WNOHANG | __WALL) > 0) continue; /* the first process of its namespace inherits them */
    if (late)
        strcpy(last, "timeout\n");
    else if (WIFSIGNALED(status))
        sprintf(last, "signal %d\n", WTERMSIG(status));
    else
        strcpy(last, "ended\n");
    return say(fd, last, strlen(last));
}

static void serve_calls(int in, int out) {
    static struct call calls[CALLS];
    static char line[LINE];
    while (line_from(in, line) >= 0) {
        char *rest = line, *where = strsep(&rest, " ");
        int count = take_calls(calls, rest ? rest : line + strlen(line));
        if (strcmp(where, "child") == 0) {
            if (in_child(calls, count, out) != 0) return;
        } else {
            perform(calls, count, out);
            if (say(out, "ended\n", 6) != 0) return;
        }
    }
}

static int copy(int from, int to) {
    char part[65536];
    ssize_t got = read(from, part, sizeof part);
    return got > 0 ? say(to, part, (size_t)got) : -1;
}

static void *relay(void *given) {
    int orders = (int)(intptr_t)given, agent = accept4(AGENT, NULL, NULL, SOCK_CLOEXEC);
    struct pollfd both[2] = {{.fd = orders, .events = POLLIN}, {.fd = agent, .events = POLLIN}};
    while (agent >= 0 && poll(both, 2, -1) > 0) {
        if (both[0].revents != 0 && copy(orders, agent) != 0) break;
        if (both[1].revents != 0 && copy(agent, orders) != 0) break;
    }
    if (agent >= 0) close(agent);
    close(orders);
    return NULL;
}

static const char *order_in(const char *line) {
    size_t at = 0;
    for (; nonce[at] != 0; at++)
        if (line[at] != nonce[at]) return "";
    return line + at;
}

static void take_orders(int monitor) {
    static char line[LINE];
    static const char greeting[] = "no monitor\n"; /* whoever wants a monitor learns at once that this is none */
    struct timeval limit = {.tv_sec = 5};
    int one = accept4(monitor, NULL, NULL, SOCK_CLOEXEC);
    if (one < 0) return;
    setsockopt(one, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    if (say(one, greeting, sizeof greeting - 1) == 0 && line_from(one, line) >= 0) {
        limit.tv_sec = 0;
        setsockopt(one, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
        pthread_t made;
        if (strcmp(order_in(line), " relay") == 0 && pthread_create(&made, NULL, relay, (void *)(intptr_t)one) == 0) {
            pthread_detach(made);
            return;
        }
        if (strcmp(order_in(line), " calls") == 0 && say(one, "ready\n", 6) == 0) serve_calls(one, one);
    }
    close(one);
}

/* As QEMU does: a VMM with fewer filters than one has is replaced. It allows everything, so what is refused here is
 * refused by the jail. */
static void load_own_filter(void) {
    struct sock_filter all[] = {{.code = BPF_LD | BPF_W | BPF_ABS}, {.code = BPF_RET | BPF_K, .k = SECCOMP_RET_ALLOW}};
    struct sock_fprog program = {.len = 2, .filter = all};
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program);
}

int main(int argc, char **argv) {
    sigset_t all;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--version") == 0) return say(1, "QEMU emulator version 7.2.0\n", 28);
        if (strcmp(argv[i], "--calls") == 0) {
            serve_calls(0, 1);
            return 0;
        }
    }
    load_own_filter();
    /* A signal would stop a thread that is traced; a closed connection is seen by write(2). */
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, NULL);
    for (;;) take_orders(MONITOR);
}
