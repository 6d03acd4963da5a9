/* Drives the agent's watch over its port on the host: a FIFO hangs up when its last writer leaves, and is well again
 * when one comes, as the port does with hosts.
 *   port_driver FIFO   aborts on a broken promise */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "base.h"
#include "port.h"

static struct port port;
static const char *fifo;

static void promise(bool kept, const char *what) {
    if (kept) return;
    fprintf(stderr, "broken promise: %s\n", what);
    abort();
}

static int host_comes(void) {
    int host = open(fifo, O_WRONLY | O_CLOEXEC);
    promise(host >= 0, "the FIFO has a reader");
    promise(write(host, "", 1) == 1, "the FIFO has room"); /* its writer alone is no edge */
    return host;
}

static void sleep_ms(int64_t ms) {
    struct timespec time = {.tv_sec = (time_t)(ms / 1000), .tv_nsec = (long)(ms % 1000) * 1000000};
    (void)nanosleep(&time, NULL);
}

/* As the agent's loop does: nothing happens, and the time to look has come. */
static bool look(void) {
    promise(port_deadline(&port) != 0, "a look is due while nobody is there");
    while (now_ms() < port_deadline(&port)) sleep_ms(1);
    return port_host_left(&port);
}

int main(int count, char **arguments) {
    promise(count == 2, "one argument");
    fifo = arguments[1];
    promise(port_watch(&port, open(fifo, O_RDONLY | O_NONBLOCK | O_CLOEXEC)), "the port is watched");
    int host = host_comes();
    promise(!port_host_left(&port) && port_deadline(&port) == 0, "a host that is there has not left");

    close_fd(&host);
    promise(!port_host_left(&port), "a hang-up alone is no leaving");
    for (unsigned i = 1; i < PORT_LOOKS; i++) promise(!look(), "nor is one that has not lasted");
    host = host_comes();
    promise(!port_host_left(&port) && port_deadline(&port) == 0, "the next host ends the looking");

    close_fd(&host);
    promise(!port_host_left(&port), "the looks begin anew");
    sleep_ms((int64_t)PORT_LOOK_MS * (PORT_LOOKS + 1));
    promise(!port_host_left(&port), "time in which the machine stood still counts as one look");
    for (unsigned i = 2; i < PORT_LOOKS; i++) promise(!look(), "until all looks found nobody");
    promise(look(), "a host that stays away has left");
    promise(!port_host_left(&port) && port_deadline(&port) == 0, "which is told once");
    return 0;
}
