/* The guest's one network card: addresses, routes and MTU as the host says them. Reads nothing from the network. */
#ifndef BOX_NETWORK_H
#define BOX_NETWORK_H

#include <netinet/in.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define NETWORK_BODY_MAX 1024u
#define NETWORK_DNS_MAX 3u

/* What NETWORK asks for. A family without an address, or without a gateway, has none. */
struct network {
    uint8_t mac[6];
    uint32_t mtu;
    bool has4, has6, route4, route6;
    struct in_addr address4, gateway4;
    struct in6_addr address6, gateway6;
    uint8_t prefix4, prefix6;
    char dns[NETWORK_DNS_MAX][INET6_ADDRSTRLEN];
    unsigned dns_count;
};

/* Lines "key=value\n". False: malformed. */
bool network_parse(const uint8_t *body, size_t length, struct network *out);

/* Makes it so; again with other values changes what differs. False with the reason in `why`. */
bool network_apply(const struct network *wanted, char *why, size_t room);

#endif
