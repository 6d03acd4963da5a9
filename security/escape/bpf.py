"""Seccomp programs: fetched from a live thread by ptrace, and judged by running them.

A program is a list of classic BPF instructions (linux/filter.h). Running it for a system call gives
the kernel's verdict for that call, so nothing here depends on how the program was written.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import time

Program = list[tuple[int, int, int, int]]

PTRACE_DETACH, PTRACE_SEIZE = 17, 0x4206
PTRACE_INTERRUPT, PTRACE_SECCOMP_GET_FILTER = 0x4207, 0x420C
WALL = 0x40000000  # wait(2): __WALL, threads too
WORD = 0xFFFFFFFF

X86_64, I386 = 0xC000003E, 0x40000003  # linux/audit.h
X32_BIT = 0x40000000
KILL_PROCESS, KILL_THREAD, TRAP, ERRNO = 0x80000000, 0, 0x30000, 0x50000
USER_NOTIF, TRACE, LOG, ALLOW = 0x7FC00000, 0x7FF00000, 0x7FFC0000, 0x7FFF0000
# seccomp(2): of several programs the verdict that comes first here counts
PRECEDENCE = (KILL_PROCESS, KILL_THREAD, TRAP, ERRNO, USER_NOTIF, TRACE, LOG, ALLOW)

_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.argtypes = (ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p)
_libc.ptrace.restype = ctypes.c_long


def _ptrace(request: int, tid: int, number: int = 0, at: object = None) -> int:
    found = int(_libc.ptrace(request, tid, number, at))
    if found < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return found


def seize(tid: int, options: int = 0) -> None:
    """Trace this thread, which goes on running, with the options of ptrace(2). Raises OSError."""
    _ptrace(PTRACE_SEIZE, tid, 0, options)


def release(tid: int) -> None:
    """Stop a seized thread for a moment and let it go; one that has ended is no mistake."""
    try:
        _stop(tid)
        _ptrace(PTRACE_DETACH, tid)
    except OSError as error:
        if error.errno not in (errno.ESRCH, errno.ECHILD):
            raise


def _stop(tid: int) -> None:
    _ptrace(PTRACE_INTERRUPT, tid)
    deadline = time.monotonic() + 2
    while True:
        found, state = os.waitpid(tid, os.WNOHANG | WALL)
        if found == tid and state & 0xFF == 0x7F:
            return
        if found == tid or time.monotonic() > deadline:
            raise OSError(errno.ETIMEDOUT, f"thread {tid} does not stop")
        time.sleep(0.0005)


def fetch(tid: int) -> list[Program]:
    """Every program in force on this thread. Needs root; stops the thread for a moment.

    Raises OSError: EPERM or EACCES where the kernel does not show programs.
    """
    seize(tid)
    try:
        _stop(tid)
        programs: list[Program] = []
        while True:
            try:
                programs.append(_one(tid, len(programs)))
            except OSError as error:
                if error.errno == errno.ENOENT:
                    return programs
                raise
    finally:
        try:
            _ptrace(PTRACE_DETACH, tid)
        except OSError as error:
            if error.errno != errno.ESRCH:
                raise


def _one(tid: int, index: int) -> Program:
    count = _ptrace(PTRACE_SECCOMP_GET_FILTER, tid, index)
    buffer = ctypes.create_string_buffer(count * 8)
    _ptrace(PTRACE_SECCOMP_GET_FILTER, tid, index, buffer)
    return [struct.unpack_from("<HBBI", buffer.raw, at) for at in range(0, count * 8, 8)]


def verdict(
    programs: list[Program], number: int, args: tuple[int, ...] = (), arch: int = X86_64
) -> int:
    """The action of all programs together for one call, without its data bits."""
    data = struct.pack("<IIQ", number & WORD, arch, 0)
    for index in range(6):
        data += struct.pack("<Q", (args[index] if index < len(args) else 0) & (2**64 - 1))
    found = {_action(run(program, data)) for program in programs}
    return next((action for action in PRECEDENCE if action in found), ALLOW)


def _action(value: int) -> int:
    action = value & 0xFFFF0000
    return action if action in PRECEDENCE else KILL_PROCESS


def run(program: Program, data: bytes) -> int:
    """What a program returns for a struct seccomp_data. Raises ValueError for a broken program."""
    a = x = at = 0
    scratch = [0] * 16
    for _ in range(len(program) + 1):
        code, jump_true, jump_false, k = program[at]
        at += 1
        group = code & 7
        if group == 0x06:  # RET
            return a if code & 0x18 == 0x10 else k
        if group == 0x05:  # JMP
            kind = code & 0xF0
            if kind == 0:
                at += k
                continue
            other = x if code & 0x08 else k
            true = {0x10: a == other, 0x20: a > other, 0x30: a >= other, 0x40: bool(a & other)}
            at += jump_true if true[kind] else jump_false
        elif group in (0x00, 0x01):  # LD, LDX
            value = _loaded(code & 0xE0, k, data, scratch)
            a, x = (value, x) if group == 0 else (a, value)
        elif group in (0x02, 0x03):  # ST, STX
            scratch[k] = a if group == 0x02 else x
        elif group == 0x04:
            a = _computed(code & 0xF0, a, x if code & 0x08 else k)
        elif code & 0x80:  # MISC: TXA, TAX
            a = x
        else:
            x = a
    raise ValueError("the program does not end")


def _loaded(mode: int, k: int, data: bytes, scratch: list[int]) -> int:
    if mode == 0x20:  # ABS
        return int(struct.unpack_from("<I", data, k)[0])
    if mode == 0x60:  # MEM
        return scratch[k]
    return len(data) if mode == 0x80 else k  # LEN, IMM


def _computed(kind: int, a: int, b: int) -> int:
    if kind in (0x30, 0x90) and b == 0:
        raise ValueError("the program divides by zero")
    results = {
        0x00: a + b, 0x10: a - b, 0x20: a * b, 0x40: a | b, 0x50: a & b,
        0x60: a << min(b, 32), 0x70: a >> min(b, 32), 0x80: -a, 0xA0: a ^ b,
    }  # fmt: skip
    if kind == 0x30:
        return a // b
    return (a % b if kind == 0x90 else results[kind]) & WORD
