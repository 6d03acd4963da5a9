/* /data to and from an archive on the disk `transfer`. Commands without a program, like those of fileops.h. */
#ifndef BOX_TRANSFER_H
#define BOX_TRANSFER_H

_Noreturn void transfer_export(void);
_Noreturn void transfer_import(void);

#endif
