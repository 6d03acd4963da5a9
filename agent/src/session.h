/* Who may speak, and what each frame means. */
#ifndef BOX_SESSION_H
#define BOX_SESSION_H

#include <stdbool.h>
#include <stdint.h>

#include "disks.h"
#include "port.h"
#include "sha256.h"
#include "streams.h"
#include "view.h"

struct session {
    struct port port;
    struct frame_parser parser;
    struct streams streams;
    struct view view;
    struct disks disks;
    bool open;                   /* a host has said hello with the token */
    bool has_token;
    uint8_t token[SHA256_SIZE];  /* its hash */
    uint32_t refusals;
};

/* Handles what the port brought, as far as there is room for answers. */
void session_receive(struct session *session);

/* The host has gone: its commands end. */
void session_end(struct session *session);

#endif
