"""Classic BPF over `struct seccomp_data`: a decision for each system call, as a program.

A decision is an answer, or a rule about the arguments. Nothing but rules loads an argument, so that
the kernel can keep the other answers in a bitmap and never runs the program for them.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple, Union

KILL = 0x8000_0000
ALLOW = 0x7FFF_0000
_ERRNO = 0x0005_0000

# `struct seccomp_data`: nr, arch, instruction_pointer, args[6], all of them little-endian.
_NR, _ARCH, _ARGUMENTS = 0, 4, 16

_LOAD, _AND, _RETURN, _JUMP = 0x20, 0x54, 0x06, 0x05
_EQUAL, _AT_LEAST, _ANY_BIT = 0x15, 0x35, 0x45
_MOST_SKIPPED = 255


class Instruction(NamedTuple):
    """One instruction; `yes` and `no` say how many of the next ones a condition skips."""

    code: int
    value: int
    yes: int = 0
    no: int = 0


class Check(NamedTuple):
    """True when 32 bits of an argument, masked, are one of `values`; without values, when not 0.

    `argument` counts from 0; `high` takes its upper half.
    """

    argument: int
    values: tuple[int, ...] = ()
    mask: int = 0xFFFF_FFFF
    high: bool = False


class Case(NamedTuple):
    """The answer when all checks hold."""

    checks: tuple[Check, ...]
    answer: int


class Rule(NamedTuple):
    """The answer of the first case that holds, else `otherwise`."""

    cases: tuple[Case, ...]
    otherwise: int


Decision = Union[int, Rule]


def error(number: int) -> int:
    """The answer that fails a call with errno `number`; 0 says "done" without doing it."""
    return _ERRNO | number


def program(
    architecture: int, decisions: Sequence[Decision], beyond: int, limit: int = 2**32
) -> bytes:
    """Decide calls of `architecture` (an AUDIT_ARCH number) and kill at those of any other.

    `decisions[n]` is for call number n; all other numbers get `beyond`, those from `limit` on
    before anything else is looked at.
    """
    start = [
        Instruction(_LOAD, _ARCH),
        Instruction(_EQUAL, architecture, yes=1),
        Instruction(_RETURN, KILL),
        Instruction(_LOAD, _NR),
    ]
    if limit < 2**32:
        start += [Instruction(_AT_LEAST, limit, no=1), Instruction(_RETURN, beyond)]
    intervals: list[tuple[int, Decision]] = []
    for number, decision in enumerate([*decisions, beyond]):
        if not intervals or intervals[-1][1] != decision:
            intervals.append((number, decision))
    return b"".join(
        struct.pack("=HBBI", one.code, one.yes, one.no, one.value)
        for one in start + _search(intervals)
    )


def _search(intervals: Sequence[tuple[int, Decision]]) -> list[Instruction]:
    """A binary search by call number; the accumulator holds it."""
    if len(intervals) == 1:
        decision = intervals[0][1]
        return _rule(decision) if isinstance(decision, Rule) else [Instruction(_RETURN, decision)]
    middle = len(intervals) // 2
    below, above = _search(intervals[:middle]), _search(intervals[middle:])
    first = intervals[middle][0]
    if len(below) <= _MOST_SKIPPED:
        return [Instruction(_AT_LEAST, first, yes=len(below)), *below, *above]
    return [
        Instruction(_AT_LEAST, first, no=1),
        Instruction(_JUMP, len(below)),
        *below,
        *above,
    ]


def _rule(rule: Rule) -> list[Instruction]:
    program: list[Instruction] = []
    for case in rule.cases:
        # From its answer backwards, since a check that fails skips what follows it.
        block = [Instruction(_RETURN, case.answer)]
        for check in reversed(case.checks):
            block = _check(check, len(block)) + block
        program += block
    return [*program, Instruction(_RETURN, rule.otherwise)]


def _check(check: Check, rest: int) -> list[Instruction]:
    """Go on with the next instruction when it holds, else skip the `rest`."""
    offset = _ARGUMENTS + 8 * check.argument + (4 if check.high else 0)
    load = [Instruction(_LOAD, offset)]
    if not check.values:
        return [*load, Instruction(_ANY_BIT, check.mask, no=rest)]
    if check.mask != 0xFFFF_FFFF:
        load.append(Instruction(_AND, check.mask))
    last = len(check.values) - 1
    return load + [
        Instruction(_EQUAL, value, yes=last - index, no=rest if index == last else 0)
        for index, value in enumerate(check.values)
    ]
