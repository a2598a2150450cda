"""A thread that may make no system call: seccomp kills the process at the first one."""

import ctypes
import platform

# What the interpreter itself needs: its lock under contention, and memory. Nothing waits for a
# disk or a network here.
_NAMES = ("mmap", "mprotect", "munmap", "brk", "madvise", "futex", "clock_gettime")
_NUMBERS = {
    "x86_64": (9, 10, 11, 12, 28, 202, 228),
    "aarch64": (222, 226, 215, 214, 233, 98, 113),
}
SUPPORTED = platform.machine() in _NUMBERS

_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _MODE_FILTER = 38, 22, 2
_LOAD_NUMBER, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_KILL_PROCESS, _ALLOW = 0x80000000, 0x7FFF0000


class _Instruction(ctypes.Structure):
    _fields_ = (
        ("code", ctypes.c_uint16),
        ("if_true", ctypes.c_uint8),
        ("if_false", ctypes.c_uint8),
        ("value", ctypes.c_uint32),
    )


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_uint16), ("instructions", ctypes.POINTER(_Instruction)))


def forbid_system_calls() -> None:
    """From here on, any system call of this thread but for memory and locks kills the process."""
    numbers = _NUMBERS[platform.machine()]
    last = len(numbers)
    tests = [_Instruction(_JUMP_IF_EQUAL, last - i, 0, n) for i, n in enumerate(numbers)]
    whole = [
        _Instruction(_LOAD_NUMBER, 0, 0, 0),
        *tests,
        _Instruction(_RETURN, 0, 0, _KILL_PROCESS),
        _Instruction(_RETURN, 0, 0, _ALLOW),
    ]
    program = _Program(len(whole), (_Instruction * len(whole))(*whole))
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    one, none = ctypes.c_ulong(1), ctypes.c_ulong(0)
    if prctl(_PR_SET_NO_NEW_PRIVS, one, none, none, none) or prctl(
        _PR_SET_SECCOMP, ctypes.c_ulong(_MODE_FILTER), ctypes.byref(program)
    ):
        raise OSError(ctypes.get_errno(), "seccomp is not available")
