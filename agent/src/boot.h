/* From the kernel's handover to a working /dev, /sys, cgroup tree and drivers. */
#ifndef BOX_BOOT_H
#define BOX_BOOT_H

#include <stdbool.h>
#include <stddef.h>

/* Mounts, modules in the order of their file names, loopback, PID 1's own guards. Says what failed and goes on: whoever
 * needs the missing part reports it. */
void boot(void);

/* The value of `key=` on the kernel's command line. False when it is not there. */
bool boot_option(const char *key, char *value, size_t room);

#endif
