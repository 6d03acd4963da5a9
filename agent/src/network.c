#include "network.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <net/if_arp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base.h"

/* IPv4 needs 68 (RFC 791); no link has more than 65,535. */
#define MTU_MIN 68u
#define MTU_MAX 65535u

/* One rtnetlink request (rtnetlink(7)) with room for its attributes. */
struct request {
    struct nlmsghdr header;
    union {
        struct ifinfomsg link;
        struct ifaddrmsg address;
        struct rtmsg route;
    } body;
    uint8_t attributes[128];
};

static bool number(const char *value, unsigned long low, unsigned long high, unsigned long *out) {
    char *end;
    if (value[0] < '0' || value[0] > '9') return false;
    *out = strtoul(value, &end, 10);
    return *end == 0 && *out >= low && *out <= high;
}

static bool parse_mac(const char *value, uint8_t mac[6]) {
    if (strlen(value) != 17) return false;
    for (size_t i = 0; i < 6; i++) {
        char *end, byte[3] = {value[i * 3], value[i * 3 + 1], 0};
        mac[i] = (uint8_t)strtoul(byte, &end, 16);
        if (end != byte + 2 || (i < 5 && value[i * 3 + 2] != ':')) return false;
    }
    return true;
}

/* "ADDRESS/PREFIX" */
static bool parse_address(int family, char *value, void *address, uint8_t *prefix) {
    char *slash = strchr(value, '/');
    unsigned long length;
    if (slash == NULL) return false;
    *slash = 0;
    if (inet_pton(family, value, address) != 1) return false;
    if (!number(slash + 1, 1, family == AF_INET ? 32 : 128, &length)) return false;
    *prefix = (uint8_t)length;
    return true;
}

static bool parse_line(const char *key, char *value, struct network *out) {
    unsigned long mtu;
    struct in6_addr address;
    if (strcmp(key, "mac") == 0) return parse_mac(value, out->mac);
    if (strcmp(key, "mtu") == 0) {
        if (!number(value, MTU_MIN, MTU_MAX, &mtu)) return false;
        out->mtu = (uint32_t)mtu;
        return true;
    }
    if (strcmp(key, "address4") == 0) {
        return out->has4 = parse_address(AF_INET, value, &out->address4, &out->prefix4);
    }
    if (strcmp(key, "address6") == 0) {
        return out->has6 = parse_address(AF_INET6, value, &out->address6, &out->prefix6);
    }
    if (strcmp(key, "gateway4") == 0) return out->route4 = inet_pton(AF_INET, value, &out->gateway4) == 1;
    if (strcmp(key, "gateway6") == 0) return out->route6 = inet_pton(AF_INET6, value, &out->gateway6) == 1;
    if (strcmp(key, "dns") == 0) {
        if (out->dns_count == NETWORK_DNS_MAX || strlen(value) >= sizeof out->dns[0]) return false;
        if (inet_pton(AF_INET, value, &address) != 1 && inet_pton(AF_INET6, value, &address) != 1) return false;
        text(out->dns[out->dns_count++], sizeof out->dns[0], "%s", value);
        return true;
    }
    return true; /* a later host may say more */
}

bool network_parse(const uint8_t *body, size_t length, struct network *out) {
    char lines[NETWORK_BODY_MAX + 1];
    if (length > NETWORK_BODY_MAX || memchr(body, 0, length) != NULL) return false;
    memcpy(lines, body, length);
    lines[length] = 0;
    *out = (struct network){0};
    char *rest = lines;
    for (char *line = strsep(&rest, "\n"); rest != NULL; line = strsep(&rest, "\n")) {
        char *value = strchr(line, '=');
        if (value == NULL) return false;
        *value = 0;
        if (!parse_line(line, value + 1, out)) return false;
    }
    return out->mtu != 0 && (out->has4 || !out->route4) && (out->has6 || !out->route6);
}

/* The interface with this MAC; 0 when there is none. */
static unsigned find_device(const uint8_t mac[6], char name[IF_NAMESIZE]) {
    AUTO_CLOSE int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    struct if_nameindex *all = if_nameindex();
    unsigned found = 0;
    for (struct if_nameindex *at = all; fd >= 0 && at != NULL && at->if_index != 0 && found == 0; at++) {
        struct ifreq request = {0};
        text(request.ifr_name, sizeof request.ifr_name, "%s", at->if_name);
        if (ioctl(fd, SIOCGIFHWADDR, &request) != 0 || request.ifr_hwaddr.sa_family != ARPHRD_ETHER) continue;
        if (memcmp(request.ifr_hwaddr.sa_data, mac, 6) != 0) continue;
        found = at->if_index;
        text(name, IF_NAMESIZE, "%s", at->if_name);
    }
    if (all != NULL) if_freenameindex(all);
    return found;
}

static void begin(struct request *request, uint16_t type, uint16_t flags, size_t body) {
    *request = (struct request){0};
    request->header.nlmsg_type = type;
    request->header.nlmsg_flags = (uint16_t)(NLM_F_REQUEST | NLM_F_ACK | flags);
    request->header.nlmsg_len = (uint32_t)NLMSG_LENGTH(body);
}

static void add(struct request *request, uint16_t type, const void *value, size_t size) {
    size_t at = NLMSG_ALIGN(request->header.nlmsg_len);
    struct rtattr head = {.rta_type = type, .rta_len = (uint16_t)RTA_LENGTH(size)};
    memcpy((uint8_t *)request + at, &head, sizeof head);
    memcpy((uint8_t *)request + at + RTA_LENGTH(0), value, size);
    request->header.nlmsg_len = (uint32_t)(at + RTA_ALIGN(head.rta_len));
}

/* Zero, or the errno of the kernel's answer. */
static int ask(const struct request *request) {
    AUTO_CLOSE int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE);
    struct {
        struct nlmsghdr header;
        struct nlmsgerr error;
        uint8_t rest[512];
    } answer;
    if (fd < 0 || send(fd, request, request->header.nlmsg_len, 0) < 0) return errno;
    ssize_t size = recv(fd, &answer, sizeof answer, 0);
    if (size < 0) return errno;
    if ((size_t)size < NLMSG_LENGTH(sizeof answer.error) || answer.header.nlmsg_type != NLMSG_ERROR) return EPROTO;
    return -answer.error.error;
}

static int set_link(unsigned index, uint32_t mtu) {
    struct request request;
    begin(&request, RTM_NEWLINK, 0, sizeof request.body.link);
    request.body.link = (struct ifinfomsg){.ifi_index = (int)index, .ifi_flags = IFF_UP, .ifi_change = IFF_UP};
    add(&request, IFLA_MTU, &mtu, sizeof mtu);
    return ask(&request);
}

static int change_address(uint16_t type, unsigned index, int family, const void *address, uint8_t prefix) {
    struct request request;
    size_t size = family == AF_INET ? 4 : 16;
    /* IFA_F_NODAD: nobody else is on this link, and detection would keep the address unusable for a second. */
    uint32_t flags = family == AF_INET6 ? IFA_F_NODAD : 0;
    begin(&request, type, type == RTM_NEWADDR ? NLM_F_CREATE | NLM_F_REPLACE : 0, sizeof request.body.address);
    request.body.address = (struct ifaddrmsg){.ifa_family = (uint8_t)family, .ifa_prefixlen = prefix,
                                              .ifa_index = index};
    add(&request, IFA_LOCAL, address, size);
    add(&request, IFA_ADDRESS, address, size);
    if (flags != 0) add(&request, IFA_FLAGS, &flags, sizeof flags);
    return ask(&request);
}

static int change_route(uint16_t type, unsigned index, int family, const void *gateway) {
    struct request request;
    begin(&request, type, type == RTM_NEWROUTE ? NLM_F_CREATE | NLM_F_REPLACE : 0, sizeof request.body.route);
    request.body.route = (struct rtmsg){.rtm_family = (uint8_t)family, .rtm_table = RT_TABLE_MAIN,
                                        .rtm_protocol = RTPROT_STATIC, .rtm_type = RTN_UNICAST};
    if (type == RTM_DELROUTE) request.body.route.rtm_scope = RT_SCOPE_NOWHERE;
    add(&request, RTA_GATEWAY, gateway, family == AF_INET ? 4 : 16);
    uint32_t device = index;
    add(&request, RTA_OIF, &device, sizeof device);
    return ask(&request);
}

/* Nobody on this link tells the guest anything that it should believe. */
static void distrust(const char *name) {
    static const char *const settings[][2] = {{"accept_ra", "0"}, {"autoconf", "0"}, {"accept_redirects", "0"},
                                              {"accept_dad", "0"}, {"router_solicitations", "0"}};
    char path[96];
    for (size_t i = 0; i < LENGTH(settings); i++) {
        text(path, sizeof path, "/proc/sys/net/ipv6/conf/%s/%s", name, settings[i][0]);
        (void)file_put(AT_FDCWD, path, settings[i][1]);
    }
}

static bool failed(char *why, size_t room, const char *what, int error) {
    text(why, room, "%s: %s", what, strerror(error));
    return false;
}

bool network_apply(const struct network *wanted, char *why, size_t room) {
    static struct network now; /* what was applied last; all zero: nothing */
    char name[IF_NAMESIZE];
    unsigned index = find_device(wanted->mac, name);
    if (index == 0) return failed(why, room, "the guest kernel shows no network card", ENODEV);
    distrust(name);
    /* What is there no more goes first, its routes with it. */
    if (now.has4 && (!wanted->has4 || memcmp(&now.address4, &wanted->address4, 4) != 0))
        (void)change_address(RTM_DELADDR, index, AF_INET, &now.address4, now.prefix4);
    if (now.has6 && (!wanted->has6 || memcmp(&now.address6, &wanted->address6, 16) != 0))
        (void)change_address(RTM_DELADDR, index, AF_INET6, &now.address6, now.prefix6);
    if (now.route6 && (!wanted->route6 || memcmp(&now.gateway6, &wanted->gateway6, 16) != 0))
        (void)change_route(RTM_DELROUTE, index, AF_INET6, &now.gateway6);
    now = (struct network){0};
    int error = set_link(index, wanted->mtu);
    if (error != 0) return failed(why, room, "the link", error);
    if (wanted->has4) error = change_address(RTM_NEWADDR, index, AF_INET, &wanted->address4, wanted->prefix4);
    if (error != 0) return failed(why, room, "the IPv4 address", error);
    if (wanted->route4) error = change_route(RTM_NEWROUTE, index, AF_INET, &wanted->gateway4);
    if (error != 0) return failed(why, room, "the IPv4 route", error);
    if (wanted->has6) error = change_address(RTM_NEWADDR, index, AF_INET6, &wanted->address6, wanted->prefix6);
    if (error != 0) return failed(why, room, "the IPv6 address", error);
    if (wanted->route6) error = change_route(RTM_NEWROUTE, index, AF_INET6, &wanted->gateway6);
    if (error != 0) return failed(why, room, "the IPv6 route", error);
    now = *wanted;
    return true;
}
