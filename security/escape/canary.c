/* A listener that must be heard from where it may be, and from nowhere else.
 *
 * usage: canary IPV4 IPV6 PORT...
 * Listens on every address of both families at these ports, over TCP and UDP. It prints "ready", then one line for all
 * that arrives, with the word that was said: "tcp ADDRESS PORT PEER WORD". A connection is told at once as well, with the
 * word "-". It answers what it heard; at UDP port 53 it is a resolver to whom every name is IPV4 and IPV6. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define MOST 1000
#define DATAGRAM 1
#define LISTENER 2
#define STREAM 3

static struct pollfd each[MOST];
static int kinds[MOST], ports[MOST];
static nfds_t count;
static unsigned char four[4], six[16];

static const char *text(const struct in6_addr *address, char *room) {
    if (IN6_IS_ADDR_V4MAPPED(address)) return inet_ntop(AF_INET, &address->s6_addr[12], room, INET6_ADDRSTRLEN);
    return inet_ntop(AF_INET6, address, room, INET6_ADDRSTRLEN);
}

static void tell(const char *kind, const struct in6_addr *own, int port, const struct in6_addr *peer, const char *word) {
    char one[INET6_ADDRSTRLEN], two[INET6_ADDRSTRLEN];
    printf("%s %s %d %s %s\n", kind, text(own, one), port, text(peer, two), word);
}

/* Keeps what can be printed of the first line; "?" for nothing. */
static void plain(char *said, ssize_t size) {
    ssize_t end = 0;
    while (end < size && end < 40 && said[end] > ' ' && said[end] < 127) end++;
    if (end == 0) said[end++] = '?';
    said[end] = 0;
}

static void add(int fd, int kind, int port) {
    if (fd < 0 || count == MOST) exit(3);
    each[count].fd = fd;
    each[count].events = POLLIN;
    kinds[count] = kind;
    ports[count++] = port;
}

static void listen_at(int port) {
    struct sockaddr_in6 at = {.sin6_family = AF_INET6, .sin6_port = htons((unsigned short)port)};
    for (int type = SOCK_STREAM; type <= SOCK_DGRAM; type++) {
        int fd = socket(AF_INET6, type, 0), yes = 1, no = 0;
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
        setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof no);
        setsockopt(fd, IPPROTO_IPV6, IPV6_RECVPKTINFO, &yes, sizeof yes);
        if (bind(fd, (struct sockaddr *)&at, sizeof at) != 0 || (type == SOCK_STREAM && listen(fd, 128) != 0)) {
            perror("canary");
            exit(1);
        }
        add(fd, type == SOCK_STREAM ? LISTENER : DATAGRAM, port);
    }
}

static void streams(nfds_t at) {
    struct sockaddr_in6 own, peer;
    socklen_t size = sizeof peer;
    int fd = accept(each[at].fd, (struct sockaddr *)&peer, &size);
    if (fd < 0) return;
    size = sizeof own;
    getsockname(fd, (struct sockaddr *)&own, &size);
    tell("tcp", &own.sin6_addr, ports[at], &peer.sin6_addr, "-");
    if (count == MOST) close(fd);
    else add(fd, STREAM, ports[at]);
}

static void words(nfds_t at) {
    struct sockaddr_in6 own, peer;
    socklen_t one = sizeof own, two = sizeof peer;
    char said[64];
    ssize_t size = recv(each[at].fd, said, sizeof said - 1, 0);
    if (size > 0 && getsockname(each[at].fd, (struct sockaddr *)&own, &one) == 0 &&
        getpeername(each[at].fd, (struct sockaddr *)&peer, &two) == 0) {
        plain(said, size);
        tell("tcp", &own.sin6_addr, ports[at], &peer.sin6_addr, said);
        (void)!send(each[at].fd, said, strlen(said), MSG_NOSIGNAL);
    }
    close(each[at].fd);
    each[at].fd = -1;
}

/* Turns a query (RFC 1035) into its answer; 0 when it is none. `room` bytes may be used. */
static size_t resolved(unsigned char *query, size_t size, size_t room) {
    size_t at = 12;
    while (at < size && query[at] != 0) at += (size_t)query[at] + 1;
    if (at + 5 > size || (query[2] & 0x80) != 0) return 0;
    at += 5;
    int kind = query[at - 3];
    size_t length = kind == 1 ? 4 : kind == 28 ? 16 : 0;
    query[2] = 0x84;
    query[3] = 0;
    memset(query + 6, 0, 6);
    if (length == 0 || at + 12 + length > room) return at;
    query[7] = 1;
    const unsigned char head[] = {0xc0, 12, 0, (unsigned char)kind, 0, 1, 0, 0, 0, 0, 0, (unsigned char)length};
    memcpy(query + at, head, sizeof head);
    memcpy(query + at + sizeof head, kind == 1 ? four : six, length);
    return at + sizeof head + length;
}

static void datagrams(nfds_t at) {
    struct sockaddr_in6 peer;
    struct in6_pktinfo info = {0};
    char said[1024];
    union {
        char room[256];
        struct cmsghdr align;
    } control;
    struct iovec data = {said, 512};
    struct msghdr message = {&peer, sizeof peer, &data, 1, &control, sizeof control, 0};
    ssize_t size = recvmsg(each[at].fd, &message, 0);
    if (size < 0) return;
    struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    for (; head != NULL; head = CMSG_NXTHDR(&message, head)) {
        if (head->cmsg_level == IPPROTO_IPV6 && head->cmsg_type == IPV6_PKTINFO) break;
    }
    if (head != NULL) memcpy(&info, CMSG_DATA(head), sizeof info);
    size_t answer = ports[at] == 53 && size > 16 && said[0] != 'w' ? resolved((unsigned char *)said, (size_t)size, sizeof said) : 0;
    if (answer != 0) {
        tell("udp", &info.ipi6_addr, ports[at], &peer.sin6_addr, "query");
        data.iov_len = answer;
    } else {
        plain(said, size);
        tell("udp", &info.ipi6_addr, ports[at], &peer.sin6_addr, said);
        data.iov_len = strlen(said);
    }
    info.ipi6_ifindex = 0;
    if (head != NULL) memcpy(CMSG_DATA(head), &info, sizeof info); /* answered from the address that was asked */
    (void)!sendmsg(each[at].fd, &message, 0);
}

int main(int argc, char **argv) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (argc < 4 || inet_pton(AF_INET, argv[1], four) != 1 || inet_pton(AF_INET6, argv[2], six) != 1) return 2;
    for (int i = 3; i < argc; i++) listen_at(atoi(argv[i]));
    puts("ready");
    while (poll(each, count, -1) >= 0) {
        nfds_t known = count;
        for (nfds_t i = 0; i < known; i++) {
            if (each[i].fd < 0 || each[i].revents == 0) continue;
            if (kinds[i] == LISTENER) streams(i);
            else if (kinds[i] == STREAM) words(i);
            else datagrams(i);
        }
        while (count > 0 && each[count - 1].fd < 0) count--;
    }
    return 1;
}
