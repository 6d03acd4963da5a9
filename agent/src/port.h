/* The virtio-serial port: a byte buffer in each direction. It knows frames only as far as to write them. */
#ifndef BOX_PORT_H
#define BOX_PORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "frame.h"

#define PORT_OUT_SIZE (8u * FRAME_MAX)
/* Kept free for answers: data is taken from commands only while more than this is left. */
#define PORT_RESERVE (4u * FRAME_MAX)

struct port {
    int fd;
    int epoll; /* edge triggered, because a port without a host reports POLLHUP for as long as it lasts */
    bool hung_up;      /* what the last edge told */
    unsigned looks;    /* how often it was found like that since */
    int64_t next_look; /* now_ms(); 0: nothing to look for */
    uint8_t in[FRAME_MAX];
    size_t in_at, in_end;
    uint8_t out[PORT_OUT_SIZE];
    size_t out_at, out_end;
};

/* A host counts as gone when this many looks, one after another, found nobody at the other end: 2 s. */
#define PORT_LOOK_MS 250
#define PORT_LOOKS 8u

/* Finds the port by its name and opens it. False when there is none after 10 s. */
bool port_open(struct port *port);

/* Makes `fd` the port, and watches it. False with errno. */
bool port_watch(struct port *port, int fd);

/* Takes in what happened to the port since the last call. True once each time when the host has gone for good.
 *
 * A hang-up alone says nothing about the host that is speaking now. The driver learns of hosts from one queue, in a
 * kernel thread, and of bytes from another, in the interrupt. So the hello of a new host may be here before the news
 * that the one before it has left. The news of the new one then follows; it is late only while the thread cannot run,
 * and as that may be because the whole machine was stopped, looks count and not only the time. */
bool port_host_left(struct port *port);

/* When port_host_left wants to be called even if nothing happens: now_ms(), 0 for never. */
int64_t port_deadline(const struct port *port);

/* Reads what is there if the last bytes were used up; false when nothing is. */
bool port_fill(struct port *port);

size_t port_room(const struct port *port);

/* Queues bytes outside any frame, or a frame. Answers are small and PORT_RESERVE is theirs: they always fit, because
 * requests are read only while it is free. */
void port_raw(struct port *port, const void *data, size_t length);
void port_frame(struct port *port, enum to_host type, uint32_t stream, const void *payload, size_t length);

/* For data: room for up to FRAME_PAYLOAD_MAX bytes at the place where they will be sent from, then its frame. */
uint8_t *port_data_begin(struct port *port);
void port_data_end(struct port *port, enum to_host type, uint32_t stream, size_t length);

/* Writes as much as the host takes without waiting. */
void port_flush(struct port *port);

/* Drops what was not sent: it belongs to a session that has ended. */
void port_drop_output(struct port *port);

#endif
