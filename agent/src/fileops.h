/* Commands without a program: file read, file write, growing /data. They run as children like any other, because a
 * path in the guest may lead to something that blocks. */
#ifndef BOX_FILEOPS_H
#define BOX_FILEOPS_H

#include "request.h"

_Noreturn void fileop_read(const struct order *order);
_Noreturn void fileop_write(const struct order *order);
_Noreturn void fileop_resize(const struct order *order);

#endif
