#include "failure.h"

#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

#include "base.h"

void child_fail(enum exit_kind kind, int error, const char *format, ...) {
    struct child_failure failure = {.kind = (uint32_t)kind, .error = (uint32_t)error};
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(failure.text, sizeof failure.text, format, arguments);
    va_end(arguments);
    (void)write_all(CHILD_STATUS_FD, &failure, sizeof failure);
    _exit(127);
}
