"""A classic BPF machine, as the kernel runs filters of system calls on it."""

from __future__ import annotations

import struct

WORD = 0xFFFF_FFFF


def answer(program: bytes, architecture: int, number: int, arguments: tuple[int, ...]) -> int:
    """What the filter returns for a call; refuses programs that the kernel would refuse."""
    data = struct.pack("<iIQ6Q", number, architecture, 0, *arguments)
    code = list(struct.iter_unpack("=HBBI", program))
    at, accumulator = 0, 0
    while True:
        operation, yes, no, value = code[at]
        at += 1
        if operation == 0x20:
            assert value % 4 == 0, "the kernel loads aligned words only"
            (accumulator,) = struct.unpack_from("<I", data, value)
        elif operation == 0x54:
            accumulator &= value
        elif operation == 0x05:
            at += value
        elif operation == 0x15:
            at += yes if accumulator == value else no
        elif operation == 0x35:
            at += yes if accumulator >= value else no
        elif operation == 0x45:
            at += yes if accumulator & value else no
        elif operation == 0x06:
            return value
        else:
            raise AssertionError(f"unknown operation {operation:#x}")
