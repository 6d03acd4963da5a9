/* From the kernel's handover to a working /dev, /sys, cgroup tree and drivers. */
#ifndef BOX_BOOT_H
#define BOX_BOOT_H

#include <stdbool.h>
#include <stddef.h>

/* Mounts, PID 1's own guards, modules in the order of their file names. Says what failed and goes on: whoever needs the
 * missing part reports it. Loading modules and mounting disks side by side on two CPUs was measured: under emulation it
 * is slower. */
void boot(void);

/* What nobody waits for: loopback, host name. */
void boot_rest(void);

/* The value of `key=` on the kernel's command line. False when it is not there. */
bool boot_option(const char *key, char *value, size_t room);

/* Whether `key=1` is there. */
bool boot_flag(const char *key);

#endif
