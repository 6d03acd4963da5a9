#include "port.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/epoll.h>
#include <time.h>
#include <unistd.h>

#include "base.h"

#define PORT_NAME "box.agent.0"
#define APPEAR_MS 10000
#define PORTS "/sys/class/virtio-ports"

static void close_directory(DIR **directory) {
    if (*directory != NULL) closedir(*directory);
}

static bool find(char *path, size_t room) {
    __attribute__((cleanup(close_directory))) DIR *ports = opendir(PORTS);
    if (ports == NULL) return false;
    for (struct dirent *entry = readdir(ports); entry != NULL; entry = readdir(ports)) {
        char file[320], name[64];
        text(file, sizeof file, PORTS "/%s/name", entry->d_name);
        if (!file_text(file, name, sizeof name) || strcmp(name, PORT_NAME) != 0) continue;
        text(path, room, "/dev/%s", entry->d_name);
        return true;
    }
    return false;
}

bool port_open(struct port *port) {
    char path[320];
    port->fd = port->epoll = -1;
    /* The driver is loaded, but it learns the ports and their names from the device a moment later. */
    for (int64_t until = now_ms() + APPEAR_MS; !find(path, sizeof path);) {
        if (now_ms() > until) return false;
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    return port_watch(port, open(path, O_RDWR | O_NONBLOCK | O_CLOEXEC));
}

bool port_watch(struct port *port, int fd) {
    port->fd = fd;
    port->epoll = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event wanted = {.events = EPOLLIN | EPOLLOUT | EPOLLHUP | EPOLLET};
    return port->fd >= 0 && port->epoll >= 0 && epoll_ctl(port->epoll, EPOLL_CTL_ADD, port->fd, &wanted) == 0;
}

bool port_host_left(struct port *port) {
    struct epoll_event happened;
    while (epoll_wait(port->epoll, &happened, 1, 0) == 1) {
        bool hung_up = (happened.events & EPOLLHUP) != 0;
        if (hung_up == port->hung_up) continue;
        port->hung_up = hung_up;
        port->looks = 0;
        port->next_look = hung_up ? now_ms() + PORT_LOOK_MS : 0;
    }
    if (port->next_look == 0 || now_ms() < port->next_look) return false;
    port->next_look = now_ms() + PORT_LOOK_MS;
    if (++port->looks < PORT_LOOKS) return false;
    port->next_look = 0;
    return true;
}

int64_t port_deadline(const struct port *port) {
    return port->next_look;
}

bool port_fill(struct port *port) {
    if (port->in_at < port->in_end) return true;
    ssize_t size = read(port->fd, port->in, sizeof port->in);
    port->in_at = 0;
    port->in_end = size > 0 ? (size_t)size : 0;
    return size > 0;
}

size_t port_room(const struct port *port) {
    return sizeof port->out - (port->out_end - port->out_at);
}

static uint8_t *room_at_end(struct port *port, size_t length) {
    if (sizeof port->out - port->out_end < length) {
        memmove(port->out, port->out + port->out_at, port->out_end - port->out_at);
        port->out_end -= port->out_at;
        port->out_at = 0;
    }
    return sizeof port->out - port->out_end < length ? NULL : port->out + port->out_end;
}

void port_raw(struct port *port, const void *data, size_t length) {
    uint8_t *at = room_at_end(port, length);
    if (at == NULL) return;
    memcpy(at, data, length);
    port->out_end += length;
}

uint8_t *port_data_begin(struct port *port) {
    uint8_t *at = room_at_end(port, FRAME_MAX);
    return at == NULL ? NULL : at + FRAME_HEADER;
}

void port_data_end(struct port *port, enum to_host type, uint32_t stream, size_t length) {
    uint8_t *at = port->out + port->out_end;
    frame_header(at, (uint8_t)type, stream, (uint32_t)length);
    at[FRAME_HEADER + length] = FRAME_END;
    port->out_end += FRAME_HEADER + length + 1;
}

void port_frame(struct port *port, enum to_host type, uint32_t stream, const void *payload, size_t length) {
    uint8_t *at = length > FRAME_PAYLOAD_MAX ? NULL : room_at_end(port, FRAME_HEADER + length + 1);
    if (at == NULL) return;
    if (length > 0) memcpy(at + FRAME_HEADER, payload, length);
    port_data_end(port, type, stream, length);
}

void port_flush(struct port *port) {
    while (port->out_at < port->out_end) {
        ssize_t size = write(port->fd, port->out + port->out_at, port->out_end - port->out_at);
        if (size < 0 && errno == EINTR) continue;
        if (size <= 0) return; /* the next edge on the port brings us back */
        port->out_at += (size_t)size;
    }
    port->out_at = port->out_end = 0;
}

void port_drop_output(struct port *port) {
    port->out_at = port->out_end = 0;
}
