/* Knocks at many doors at once: reads lines "tcp ADDRESS PORT WORD" or "udp ADDRESS PORT WORD", says WORD at each door and
 * prints the words that were answered within the time given as the argument (milliseconds).
 *
 * Runs in guests and outside of them alike. What counts is not what it prints but what canary.c heard; a word stands for
 * one attempt. An address may end in %DEVICE. */
#include <arpa/inet.h>
#include <errno.h>
#include <net/if.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define MOST 600
#define LONGEST 40

static struct pollfd doors[MOST];
static char words[MOST][LONGEST + 2];
static char stream[MOST];
static nfds_t count;

static long now(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return at.tv_sec * 1000 + at.tv_nsec / 1000000;
}

static socklen_t parse(char *text, int port, struct sockaddr_storage *to) {
    struct sockaddr_in *four = (struct sockaddr_in *)to;
    struct sockaddr_in6 *six = (struct sockaddr_in6 *)to;
    memset(to, 0, sizeof *to);
    if (inet_pton(AF_INET, text, &four->sin_addr) == 1) {
        four->sin_family = AF_INET;
        four->sin_port = htons((unsigned short)port);
        return sizeof *four;
    }
    char *scope = strchr(text, '%');
    if (scope != NULL) {
        *scope++ = 0;
        six->sin6_scope_id = if_nametoindex(scope);
    }
    if (inet_pton(AF_INET6, text, &six->sin6_addr) != 1) exit(2);
    six->sin6_family = AF_INET6;
    six->sin6_port = htons((unsigned short)port);
    return sizeof *six;
}

static void say(nfds_t door) {
    (void)!send(doors[door].fd, words[door], strlen(words[door]), MSG_NOSIGNAL);
}

static void knock(int tcp, char *address, int port, const char *word) {
    struct sockaddr_storage to;
    socklen_t size = parse(address, port, &to);
    int yes = 1, fd = socket(to.ss_family, (tcp ? SOCK_STREAM : SOCK_DGRAM) | SOCK_NONBLOCK, 0);
    if (fd < 0 || count == MOST) exit(3);
    setsockopt(fd, SOL_SOCKET, SO_BROADCAST, &yes, sizeof yes);
    if (connect(fd, (struct sockaddr *)&to, size) != 0 && errno != EINPROGRESS) {
        close(fd);
        return;
    }
    snprintf(words[count], sizeof words[0], "%s\n", word);
    doors[count].fd = fd;
    doors[count].events = tcp ? POLLOUT : POLLIN;
    stream[count] = (char)tcp;
    if (!tcp) say(count);
    count++;
}

static void close_door(nfds_t door) {
    close(doors[door].fd);
    doors[door].fd = -1;
}

static void look(nfds_t door) {
    char answer[64];
    if (doors[door].revents & POLLOUT) {
        doors[door].events = POLLIN;
        say(door);
        return;
    }
    /* a datagram's door stays open after an error: it is knocked at twice */
    ssize_t size = recv(doors[door].fd, answer, sizeof answer, 0);
    if (size > 0) printf("%s", words[door]);
    if (size > 0 || stream[door]) close_door(door);
}

int main(int argc, char **argv) {
    char line[200], kind[4], address[80], word[LONGEST + 1];
    long begun = now(), wait = argc > 1 ? atol(argv[1]) : 1500;
    int port, again = 0;
    while (fgets(line, sizeof line, stdin) != NULL) {
        if (sscanf(line, "%3s %79s %d %40s", kind, address, &port, word) != 4) return 2;
        knock(strcmp(kind, "tcp") == 0, address, port, word);
    }
    for (;;) {
        long left = begun + wait - now();
        nfds_t open_doors = 0;
        for (nfds_t i = 0; i < count; i++) open_doors += doors[i].fd >= 0;
        if (left <= 0 || open_doors == 0) break;
        if (!again && left <= wait / 2) {
            again = 1;
            for (nfds_t i = 0; i < count; i++) {
                if (doors[i].fd >= 0 && !stream[i]) say(i);
            }
        }
        long pause = again || left <= wait / 2 ? left : left - wait / 2;
        if (poll(doors, count, (int)pause) < 0) break;
        for (nfds_t i = 0; i < count; i++) {
            if (doors[i].fd >= 0 && doors[i].revents != 0) look(i);
        }
    }
    puts("knocked");
    return 0;
}
