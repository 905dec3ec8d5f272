"""The filter in the kernel: what it refuses from inside, and what Python still does under it."""

from __future__ import annotations

import signal

import attempts_seccomp
import pytest
from inside import Ended, ending, found

from replsvc_kernels.sandbox._syscalls import ARCHITECTURE, TABLES

pytestmark = [
    pytest.mark.needs("seccomp"),
    pytest.mark.skipif(ARCHITECTURE not in TABLES, reason=f"there is no policy for {ARCHITECTURE}"),
]
MODULE = attempts_seccomp.__name__
I386_GETPID = "b814000000 cd80 c3"  # mov $20, %eax; int $0x80; ret


def test_each_refused_call_fails_although_its_arguments_would_get_further() -> None:
    before, after = (found(MODULE, "harmless_calls", filtered) for filtered in (False, True))
    hidden = {"clone3", "statmount"}
    assert {name: after[name] for name in hidden} == dict.fromkeys(hidden, "ENOSYS")
    refused = after.keys() - hidden
    assert {name: after[name] for name in refused} == dict.fromkeys(refused, "EPERM")
    # Without the filter most calls say what is wrong with their arguments, so that it was the
    # filter which refused them. The rest is refused to whoever is not root, or not built in.
    told = {name for name in refused if before[name] not in ("EPERM", "ENOSYS")}
    assert len(told) >= 10, before


@pytest.mark.needs("root")
def test_root_is_refused_what_root_may() -> None:
    before, after = (found(MODULE, "harmless_calls", filtered) for filtered in (False, True))
    roots = ("mount", "unshare", "chroot", "setns", "ptrace", "bpf", "seccomp", "reboot", "syslog")
    assert "EPERM" not in {before[name] for name in roots}
    assert {after[name] for name in roots} == {"EPERM"}


def test_the_process_is_filtered_and_gains_no_privileges() -> None:
    status = found(MODULE, "state_after_apply")
    assert status["Seccomp"].strip() == "2"
    assert status["NoNewPrivs"].strip() == "1"


def test_sockets_of_other_families_are_refused() -> None:
    after = found(MODULE, "sockets", True)
    usable = ["unix", "unix seqpacket", "tcp", "udp", "route"]
    assert {after[name] for name in usable} == {"done"}
    assert after["tcp6"] in ("done", "EAFNOSUPPORT")  # a kernel may have none
    assert after["raw"] == "EPERM"
    other = ["packet", "uevent", "alg", "vsock"]
    assert {after[name] for name in other} == {"EAFNOSUPPORT"}


@pytest.mark.needs("root")
def test_packet_sockets_and_kernel_events_were_there_without_the_filter() -> None:
    before = found(MODULE, "sockets", False)
    assert {before[name] for name in ("raw", "packet", "uevent")} == {"done"}


@pytest.mark.needs("root")
def test_nobody_types_into_a_terminal() -> None:
    if (before := found(MODULE, "typing_into_a_terminal", False)) != "done":
        pytest.skip(f"this kernel has no TIOCSTI: {before}")
    assert found(MODULE, "typing_into_a_terminal", True) == "EPERM"


def test_the_core_limit_stays_and_other_limits_can_be_lowered() -> None:
    assert found(MODULE, "core_limit") == [[1, 1], "EPERM", [64, 64]]


@pytest.mark.skipif(ARCHITECTURE != "x86_64", reason="i386 calls are made on x86_64")
def test_an_i386_call_ends_the_process() -> None:
    if isinstance(found_before := ending(MODULE, "machine_code", False, I386_GETPID), Ended):
        pytest.skip(f"this kernel has no i386 calls: {found_before}")
    after = ending(MODULE, "machine_code", True, I386_GETPID)
    assert isinstance(after, Ended)
    assert after.status == -signal.SIGSYS


def test_unknown_numbers_do_not_exist() -> None:
    assert set(found(MODULE, "unknown_numbers")) == {"ENOSYS"}


def test_a_second_filter_is_refused() -> None:
    assert found(MODULE, "second_filter") == "EPERM"


def test_threads_processes_servers_and_databases_work_under_the_filter() -> None:
    assert found(MODULE, "a_days_work") == [
        "thread", "process\n", 0, 1, 1, "hello\n", "wal", signal.SIGTERM
    ]  # fmt: skip


def test_a_thread_that_was_there_before_is_held_too() -> None:
    assert found(MODULE, "a_thread_that_was_there_before") == "EPERM"


def test_a_kernel_without_filters_is_an_error() -> None:
    assert "seccomp" in found(MODULE, "no_filters_in_this_kernel")
