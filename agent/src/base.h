/* What every other file uses: clean-up attributes, the console, small file helpers. */
#ifndef BOX_BASE_H
#define BOX_BASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <unistd.h>

/* A descriptor or allocation declared with these is released on every way out of its scope. */
static inline void close_fd(int *fd) {
    if (*fd >= 0) close(*fd);
    *fd = -1;
}
void free_pointer(void *pointer);
#define AUTO_CLOSE __attribute__((cleanup(close_fd)))
#define AUTO_FREE __attribute__((cleanup(free_pointer)))

#define LENGTH(array) (sizeof(array) / sizeof((array)[0]))

/* A line on the guest's console, with the time since boot; errors only, the console is slow. */
void say(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* snprintf that never fails: what does not fit is cut. */
void text(char *to, size_t room, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* A whole small file, without its last newline, as a string. False when it cannot be read. */
bool file_text(const char *path, char *to, size_t room);

/* Writes a string to a file of procfs, sysfs or cgroupfs. False with errno. */
bool file_put(int directory, const char *path, const char *value);

bool write_all(int fd, const void *data, size_t length);

/* Monotonic, in milliseconds. */
int64_t now_ms(void);

#endif
