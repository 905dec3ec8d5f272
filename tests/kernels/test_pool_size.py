"""How many kernels wait for sessions, by what was opened lately."""

from __future__ import annotations

from replsvc_kernels.backends.pool import (
    RECENT_S,
    PoolSize,
    Shape,
    can_be_sent,
    memory_is_left,
    wanted,
)
from replsvc_kernels.kernel import Resources
from replsvc_kernels.messages import Limits

NOW = 1_000.0
SIZE = PoolSize(least=1, most=4)


def shape(memory: int) -> Shape:
    return Shape(Resources(memory_bytes=memory), Limits(), 1.0)


USUAL, OTHER = shape(1), shape(2)


def test_who_opens_one_session_has_no_use_for_another_kernel() -> None:
    assert wanted({USUAL: [NOW]}, NOW, PoolSize(0, 4)) == {USUAL: 0}


def test_demand_grows_the_pool_up_to_its_bound() -> None:
    for count, size in ((2, 1), (3, 2), (5, 4), (50, 4)):
        assert wanted({USUAL: [NOW - 1] * count}, NOW, SIZE) == {USUAL: size}


def test_demand_of_long_ago_leaves_what_is_always_there() -> None:
    assert wanted({USUAL: [NOW - RECENT_S] * 9}, NOW, SIZE) == {USUAL: 1}
    assert wanted({USUAL: [NOW - RECENT_S + 0.1] * 9}, NOW, SIZE) == {USUAL: 4}


def test_all_shapes_share_one_bound_and_the_last_one_comes_first() -> None:
    opened = {USUAL: [NOW - 2] * 9, OTHER: [NOW - 1] * 4}
    assert wanted(opened, NOW, SIZE) == {OTHER: 3, USUAL: 1}


def test_only_the_shape_that_was_asked_for_last_is_always_there() -> None:
    opened = {USUAL: [NOW - 99], OTHER: [NOW - 98]}
    assert wanted(opened, NOW, SIZE) == {OTHER: 1, USUAL: 0}


def test_a_pool_of_nothing_wants_nothing() -> None:
    assert wanted({USUAL: [NOW] * 9}, NOW, PoolSize(0, 0)) == {USUAL: 0}


def test_without_memory_nothing_is_made_ahead() -> None:
    assert memory_is_left("MemTotal: 100 kB\nMemFree: 1 kB\nMemAvailable: 11 kB\n")
    assert not memory_is_left("MemTotal: 100 kB\nMemFree: 1 kB\nMemAvailable: 10 kB\n")


def test_variables_that_a_guest_can_not_be_told_are_for_the_fork() -> None:
    assert can_be_sent({"A": "b\nü=", "EMPTY": ""})
    for name, value in (("A=B", ""), ("", "x"), ("A", "\0"), ("A", "x" * 60_000)):
        assert not can_be_sent({name: value})
