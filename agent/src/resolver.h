/* /etc/resolv.conf as workloads see it. */
#ifndef BOX_RESOLVER_H
#define BOX_RESOLVER_H

#include <stdbool.h>
#include <stddef.h>

#include "network.h"

/* With a read-only root: a file in RAM, empty so far, is put over the image's. Runs in the namespace of the workloads
 * while their root is the working directory and RAM is still there. An image without that file gets none. */
void resolver_attach(void);

/* Names the servers. False with the reason in `why`; a guest without names still has its network. */
bool resolver_write(const struct network *wanted, char *why, size_t room);

#endif
