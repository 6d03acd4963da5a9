/* Knocks at many doors at once: reads lines "tcp ADDRESS PORT" or "udp ADDRESS PORT", prints each with what was
 * answered within the time given as the argument (milliseconds), and nothing for those that stayed silent.
 *
 * "forge SOURCE DESTINATION PORT" sends a UDP packet with that IPv4 source instead, "advertise PREFIX" a router
 * advertisement to all nodes of eth0. An address may end in %eth0. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <netinet/icmp6.h>
#include <netinet/ip.h>
#include <netinet/udp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define MOST 256

static struct pollfd doors[MOST];
static char lines[MOST][160];
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

static void knock(const char *kind, char *address, int port, const char *line) {
    struct sockaddr_storage to;
    socklen_t size = parse(address, port, &to);
    int tcp = strcmp(kind, "tcp") == 0;
    int fd = socket(to.ss_family, (tcp ? SOCK_STREAM : SOCK_DGRAM) | SOCK_NONBLOCK, 0);
    if (fd < 0) return;
    int failed = connect(fd, (struct sockaddr *)&to, size) != 0 && errno != EINPROGRESS;
    if (!failed && !tcp) failed = send(fd, "?", 1, 0) != 1;
    if (failed || count == MOST) {
        close(fd);
        return;
    }
    doors[count].fd = fd;
    doors[count].events = POLLIN;
    snprintf(lines[count++], sizeof lines[0], "%s", line);
}

static void forge(const char *source, const char *destination, int port) {
    struct {
        struct iphdr ip;
        struct udphdr udp;
        char data;
    } __attribute__((packed)) packet = {
        .ip = {.version = 4, .ihl = 5, .ttl = 64, .protocol = IPPROTO_UDP, .tot_len = htons(sizeof packet)},
        .udp = {.source = htons(4444), .dest = htons((unsigned short)port), .len = htons(9)},
        .data = '!',
    };
    struct sockaddr_in to = {.sin_family = AF_INET};
    inet_pton(AF_INET, source, &packet.ip.saddr);
    inet_pton(AF_INET, destination, &packet.ip.daddr);
    to.sin_addr.s_addr = packet.ip.daddr;
    int fd = socket(AF_INET, SOCK_RAW, IPPROTO_RAW);
    if (sendto(fd, &packet, sizeof packet, 0, (struct sockaddr *)&to, sizeof to) < 0) perror("forge");
    close(fd);
}

static void advertise(const char *prefix) {
    struct {
        struct nd_router_advert head;
        struct nd_opt_prefix_info info;
    } packet = {
        .head.nd_ra_hdr = {.icmp6_type = ND_ROUTER_ADVERT, .icmp6_dataun.icmp6_un_data16 = {0, 0xffff}},
        .info = {.nd_opt_pi_type = ND_OPT_PREFIX_INFORMATION, .nd_opt_pi_len = 4, .nd_opt_pi_prefix_len = 64,
                 .nd_opt_pi_flags_reserved = ND_OPT_PI_FLAG_ONLINK | ND_OPT_PI_FLAG_AUTO,
                 .nd_opt_pi_valid_time = 0xffffffff, .nd_opt_pi_preferred_time = 0xffffffff},
    };
    struct sockaddr_in6 to = {.sin6_family = AF_INET6, .sin6_scope_id = if_nametoindex("eth0")};
    int hops = 255, fd = socket(AF_INET6, SOCK_RAW, IPPROTO_ICMPV6);
    inet_pton(AF_INET6, prefix, &packet.info.nd_opt_pi_prefix);
    inet_pton(AF_INET6, "ff02::1", &to.sin6_addr);
    setsockopt(fd, IPPROTO_IPV6, IPV6_MULTICAST_HOPS, &hops, sizeof hops);
    if (sendto(fd, &packet, sizeof packet, 0, (struct sockaddr *)&to, sizeof to) < 0) perror("advertise");
    close(fd);
}

int main(int argc, char **argv) {
    long until, wait = argc > 1 ? atol(argv[1]) : 1500;
    char line[160], kind[12], one[64], two[64];
    int port;
    while (fgets(line, sizeof line, stdin) != NULL) {
        line[strcspn(line, "\n")] = 0;
        if (sscanf(line, "forge %63s %63s %d", one, two, &port) == 3) forge(one, two, port);
        else if (sscanf(line, "advertise %63s", one) == 1) advertise(one);
        else if (sscanf(line, "%11s %63s %d", kind, one, &port) == 3) knock(kind, one, port, line);
        else return 2;
    }
    for (until = now() + wait; now() < until;) {
        if (poll(doors, count, (int)(until - now())) <= 0) break;
        for (nfds_t i = 0; i < count; i++) {
            char answer[64];
            if (doors[i].fd < 0 || doors[i].revents == 0) continue;
            ssize_t size = recv(doors[i].fd, answer, sizeof answer - 1, 0);
            if (size > 0) {
                answer[size] = 0;
                answer[strcspn(answer, "\n")] = 0;
                printf("%s %s\n", lines[i], answer);
            }
            close(doors[i].fd);
            doors[i].fd = -1;
        }
    }
    return 0;
}
