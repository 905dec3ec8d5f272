"""What the filter decides, by running its program for every call of both architectures."""

from __future__ import annotations

import errno
import re
import socket
from collections import Counter
from pathlib import Path

import pytest
from bpf_machine import answer
from hypothesis import given
from hypothesis import strategies as st

from replsvc_kernels.sandbox import _seccomp_policy as policy
from replsvc_kernels.sandbox import seccomp
from replsvc_kernels.sandbox._syscalls import TABLES

ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
OTHERS = {"i386": 0x40000003, "arm": 0x40000028, "riscv64": 0xC00000F3, "none": 0}
ALLOW, KILL, EPERM, ENOSYS = 0x7FFF0000, 0x80000000, 0x50000 | errno.EPERM, 0x50000 | errno.ENOSYS
NOTHING = (0,) * 6
DENIED = frozenset(name for names in policy.DENIED.values() for name in names.split())
HEADERS = {
    "x86_64": Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"),
    "aarch64": Path("/usr/include/asm-generic/unistd.h"),
}
# In the words of the specification.
FORBIDDEN = """
    mount umount2 pivot_root open_tree move_mount fsopen fsconfig fsmount mount_setattr setns
    unshare chroot ptrace process_vm_readv process_vm_writev pidfd_getfd kcmp bpf perf_event_open
    keyctl add_key request_key io_uring_setup io_uring_enter io_uring_register userfaultfd seccomp
    open_by_handle_at init_module finit_module kexec_load kexec_file_load reboot swapon syslog
    """

architectures = pytest.mark.parametrize("architecture", sorted(TABLES))
words = st.integers(0, 2**64 - 1)
calls = st.one_of(st.integers(0, 600), st.integers(-(2**31), 2**31 - 1))


def decide(architecture: str, name: str | int, *arguments: int) -> int:
    number = TABLES[architecture][name] if isinstance(name, str) else name
    words = (*arguments, *NOTHING)[:6]
    return answer(seccomp.program(architecture), ARCHITECTURES[architecture], number, words)


@architectures
def test_every_call_is_decided_once(architecture: str) -> None:
    decided = Counter([*policy.ALLOWED, *policy.RULES, *policy.HIDDEN])
    decided.update(name for names in policy.DENIED.values() for name in names.split())
    assert {name for name, times in decided.items() if times > 1} == set()
    assert set(TABLES[architecture]) - set(decided) == set()


def test_no_decision_is_about_a_call_that_does_not_exist() -> None:
    decided = policy.ALLOWED | policy.HIDDEN | DENIED | policy.RULES.keys()
    assert decided - {name for table in TABLES.values() for name in table} == set()


@architectures
def test_no_number_is_given_twice(architecture: str) -> None:
    numbers = Counter(TABLES[architecture].values())
    assert [number for number, times in numbers.items() if times > 1] == []


@architectures
def test_the_numbers_are_those_of_the_kernels_headers(architecture: str) -> None:
    if not (header := HEADERS[architecture]).exists():
        pytest.skip(f"there is no {header} here")
    text = header.read_text()
    defined: dict[int, set[str]] = {}
    for name, number in re.findall(r"^#define __NR(?:3264)?_(\w+)\s+(\d+)$", text, re.MULTILINE):
        defined.setdefault(int(number), set()).add(name)
    # Where 32 and 64 bits share a number, the name of the latter is given in a second line.
    for name, shared in re.findall(r"^#define __NR_(\w+) __NR3264_(\w+)$", text, re.MULTILINE):
        for names in defined.values():
            if shared in names:
                names.add(name)
    newest = max(number for number, names in defined.items() if "syscalls" not in names)
    ours = {number: name for name, number in TABLES[architecture].items() if number <= newest}
    # The kernel makes processes call these two; the x86 headers have them since 6.11 and 6.18.
    late = {335, 336} - defined.keys() if architecture == "x86_64" else set()
    wrong = {
        number: (name, defined.get(number))
        for number, name in ours.items()
        if number not in late and name not in defined.get(number, set())
    }
    assert wrong == {}
    if architecture == "x86_64":
        assert defined.keys() - ours.keys() == set()


@architectures
@pytest.mark.parametrize("other", sorted(OTHERS))
def test_calls_of_another_architecture_end_the_process(architecture: str, other: str) -> None:
    program = seccomp.program(architecture)
    numbers = [*range(512), 0x40000001, 0x7FFFFFFF]
    answers = {answer(program, OTHERS[other], number, NOTHING) for number in numbers}
    assert answers == {KILL}


@architectures
def test_allowed_calls_are_allowed_whatever_their_arguments(architecture: str) -> None:
    for name in policy.ALLOWED & TABLES[architecture].keys():
        for word in (0, 2**64 - 1):
            assert decide(architecture, name, *[word] * 6) == ALLOW, name


@architectures
def test_denied_calls_are_refused_and_hidden_ones_do_not_exist(architecture: str) -> None:
    for names, expected in ((DENIED, EPERM), (policy.HIDDEN, ENOSYS)):
        for name in names & TABLES[architecture].keys():
            for word in (0, 2**64 - 1):
                assert decide(architecture, name, *[word] * 6) == expected, name


@pytest.mark.parametrize("name", FORBIDDEN.split())
@architectures
def test_what_the_specification_forbids_is_forbidden(architecture: str, name: str) -> None:
    assert decide(architecture, name) == EPERM


@architectures
def test_clone3_does_not_exist_so_that_flags_are_where_a_filter_sees_them(
    architecture: str,
) -> None:
    assert decide(architecture, "clone3", 2**40, 88) == ENOSYS


@architectures
@given(number=st.integers(-(2**31), 2**31 - 1), arguments=st.tuples(*[words] * 6))
def test_a_number_that_is_unknown_does_not_exist(
    architecture: str, number: int, arguments: tuple[int, ...]
) -> None:
    known = number in TABLES[architecture].values()
    assert known or decide(architecture, number, *arguments) == ENOSYS


@given(number=st.integers(0, 2**30 - 1))
def test_x32_calls_do_not_exist(number: int) -> None:
    assert decide("x86_64", 0x40000000 | number) == ENOSYS


# Arguments: each model below is written from the man pages, not from the policy.

low = st.integers(0, 2**32 - 1)
garbage = st.integers(0, 2**32 - 1).map(lambda word: word << 32)


@architectures
@given(flags=low, high=garbage)
def test_clone_makes_threads_and_processes_but_no_namespaces(
    architecture: str, flags: int, high: int
) -> None:
    new = 0x00020000 | 0x02000000 | 0x04000000 | 0x08000000 | 0x10000000 | 0x20000000 | 0x40000000
    assert decide(architecture, "clone", high | flags) == (EPERM if flags & new else ALLOW)


@architectures
@pytest.mark.parametrize("bit", range(32))
def test_each_namespace_flag_of_clone_is_refused_alone(architecture: str, bit: int) -> None:
    refused = decide(architecture, "clone", 1 << bit | 17) == EPERM
    assert refused == (bit == 17 or 25 <= bit <= 30)


families = st.one_of(st.integers(0, 45), low)
kinds = st.tuples(
    st.one_of(st.integers(0, 15), low), st.sampled_from([0, 0o4000, 0o2000000, 0o2004000])
).map(lambda both: both[0] | both[1])
protocols = st.one_of(st.integers(0, 300), low)


def socket_model(family: int, kind: int, protocol: int) -> int:
    if family == socket.AF_UNIX or (family == socket.AF_NETLINK and protocol == 0):
        return ALLOW
    if family not in (socket.AF_INET, socket.AF_INET6):
        return 0x50000 | errno.EAFNOSUPPORT
    bare = kind & ~(socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC) & 0xF
    if bare == socket.SOCK_RAW:
        return EPERM
    known = protocol in (0, 1, 6, 17, 58)
    if bare in (socket.SOCK_STREAM, socket.SOCK_DGRAM) and known:
        return ALLOW
    return 0x50000 | errno.EPROTONOSUPPORT


@architectures
@given(family=families, kind=kinds, protocol=protocols, high=st.tuples(garbage, garbage, garbage))
def test_sockets_are_unix_internet_or_routing(
    architecture: str, family: int, kind: int, protocol: int, high: tuple[int, int, int]
) -> None:
    given_words = (high[0] | family, high[1] | kind, high[2] | protocol)
    expected = socket_model(family, kind, protocol)
    assert decide(architecture, "socket", *given_words) == expected


@architectures
def test_every_pair_of_family_and_protocol_is_as_the_model_says(architecture: str) -> None:
    for family in range(46):
        for kind in (1, 2, 3, 5, 6, 0o2000001, 0o2000003):
            for protocol in (0, 1, 6, 9, 12, 15, 16, 17, 33, 58, 132, 255, 256, 262):
                expected = socket_model(family, kind, protocol)
                assert decide(architecture, "socket", family, kind, protocol) == expected


@architectures
@given(family=families, kind=kinds)
def test_socket_pairs_are_unix_only(architecture: str, family: int, kind: int) -> None:
    expected = ALLOW if family == socket.AF_UNIX else 0x50000 | errno.EAFNOSUPPORT
    assert decide(architecture, "socketpair", family, kind) == expected


REFUSED_IOCTLS = (0x5412, 0x541C, 0x5423, 0x40086602, 0x401C5820)


@architectures
@given(request=st.one_of(st.sampled_from(REFUSED_IOCTLS), low), high=garbage)
def test_ioctl_neither_types_into_terminals_nor_leaves_a_quota(
    architecture: str, request: int, high: int
) -> None:
    expected = EPERM if request in REFUSED_IOCTLS else ALLOW
    assert decide(architecture, "ioctl", 2**64 - 1, high | request, 7) == expected


@architectures
@given(persona=st.one_of(st.sampled_from([0, 8, 0x20000, 0x20008, 0x40000, 0xFFFFFFFF]), low))
def test_personality_can_be_asked_for_but_not_weaken_address_randomisation(
    architecture: str, persona: int
) -> None:
    expected = ALLOW if persona in (0, 0x20000, 0xFFFFFFFF) else EPERM
    assert decide(architecture, "personality", persona) == expected


@architectures
@given(option=st.one_of(st.integers(0, 80), low), high=garbage)
def test_prctl_neither_filters_nor_claims_cores_nor_moves_mappings(
    architecture: str, option: int, high: int
) -> None:
    expected = EPERM if option in (22, 35, 62) else ALLOW
    assert decide(architecture, "prctl", high | option) == expected


pointers = st.one_of(st.just(0), st.sampled_from([1, 1 << 32, 2**64 - 1]), words)


@architectures
@given(which=st.one_of(st.integers(0, 15), low), new=pointers, old=pointers)
def test_the_core_limit_can_be_read_but_not_changed(
    architecture: str, which: int, new: int, old: int
) -> None:
    pretended = 0x50000
    expected = ALLOW
    if which == 4 and new:
        expected = EPERM if old else pretended
    assert decide(architecture, "prlimit64", 0, which, new, old) == expected
    assert decide(architecture, "setrlimit", which, new) == (pretended if which == 4 else ALLOW)


@architectures
def test_the_program_fits_and_decides_most_calls_without_looking_at_arguments(
    architecture: str,
) -> None:
    program = seccomp.program(architecture)
    assert len(program) % 8 == 0
    assert len(program) // 8 < 4096
    with_arguments = {
        name
        for name in TABLES[architecture]
        if len({decide(architecture, name, *[word] * 6) for word in (0, 1, 4, 0x5412, 2**64 - 1)})
        > 1
    }
    assert with_arguments <= policy.RULES.keys()


def test_an_architecture_without_a_policy_is_refused_by_name() -> None:
    with pytest.raises(OSError, match="no system call policy for riscv64"):
        seccomp.program("riscv64")
