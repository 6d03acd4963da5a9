/* The way out: everything ended, /data safe, power off. */
#ifndef BOX_POWER_H
#define BOX_POWER_H

#include "session.h"

/* SIGTERM to all commands, `grace_ms` later SIGKILL to all workloads, then syncs and unmounts /data.
 * An errno when /data could not be unmounted (it was synced all the same). */
int power_settle(struct session *session, uint32_t grace_ms);

/* Sends what is queued, for 2 s at most, and turns the machine off. */
_Noreturn void power_off(struct session *session);

#endif
