#include "base.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#ifndef CONSOLE
#define CONSOLE "/dev/console"
#endif

void free_pointer(void *pointer) {
    void **at = pointer;
    free(*at);
    *at = NULL;
}

int64_t now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

void say(const char *format, ...) {
    char line[320];
    va_list arguments;
    va_start(arguments, format);
    int used = vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    if (used < 0) return;
    AUTO_CLOSE int console = open(CONSOLE, O_WRONLY | O_NOCTTY | O_NONBLOCK | O_CLOEXEC);
    if (console >= 0) dprintf(console, "box-agent: %s\r\n", line);
}

void text(char *to, size_t room, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    if (vsnprintf(to, room, format, arguments) < 0 && room > 0) to[0] = 0;
    va_end(arguments);
}

bool file_text(const char *path, char *to, size_t room) {
    AUTO_CLOSE int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return false;
    ssize_t size = read(fd, to, room - 1);
    if (size < 0) return false;
    while (size > 0 && (to[size - 1] == '\n' || to[size - 1] == 0)) size--;
    to[size] = 0;
    return true;
}

bool file_put(int directory, const char *path, const char *value) {
    AUTO_CLOSE int fd = openat(directory, path, O_WRONLY | O_CLOEXEC);
    return fd >= 0 && write_all(fd, value, strlen(value));
}

bool write_all(int fd, const void *data, size_t length) {
    const char *at = data;
    while (length > 0) {
        ssize_t size = write(fd, at, length);
        if (size < 0 && errno == EINTR) continue;
        if (size < 0) return false;
        at += size;
        length -= (size_t)size;
    }
    return true;
}
