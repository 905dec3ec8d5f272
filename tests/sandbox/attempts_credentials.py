"""What a process without rights tries; run by inside.py, as root where the test says so."""

from __future__ import annotations

import ctypes
import errno
import os
import subprocess
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from attempts_seccomp import without

from replsvc_kernels.sandbox import _libc, credentials

NEWUSER = 0x10000000
KILL = 5
CAP_AMBIENT, RAISE, IS_SET = 47, 2, 1


def attempt(action: Callable[[], Any]) -> str:
    try:
        action()
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    return "done"


def status() -> dict[str, str]:
    lines = Path("/proc/self/status").read_text().splitlines()
    return {name: value.strip() for name, value in (line.split(":", 1) for line in lines)}


def keyring() -> int:
    """The serial number of the session keyring."""
    return _libc.syscall("keyctl", 0, -3, 0)


def ambient(capability: int) -> None:
    """Make it inheritable, then ambient, as a service manager may have done."""
    header = ctypes.create_string_buffer(credentials._CAPABILITY_HEADER)
    sets = (ctypes.c_uint32 * 6)()
    _libc.syscall("capget", header, sets)
    sets[2] |= 1 << capability
    _libc.syscall("capset", header, sets)
    _libc.prctl(CAP_AMBIENT, RAISE, capability)


def dropped(uid: int, gid: int) -> dict[str, Any]:
    """As root with groups, an ambient capability and a keyring, to another uid."""
    os.setgroups([1, 2, 3])
    ambient(KILL)
    keys = keyring()
    result = credentials.drop(uid, gid)
    return {
        "result": asdict(result),
        "status": status(),
        "keyring is another": keyring() != keys,
        "securebits": _libc.prctl(27),
        "dumpable": _libc.prctl(3),
        "ambient": _libc.prctl(CAP_AMBIENT, IS_SET, KILL),
    }


def ways_back(uid: int, gid: int, setuid_program: str, private: str) -> dict[str, str]:
    # By descriptor: the directories above them are not the session's to walk through.
    program, file = (os.open(path, os.O_PATH) for path in (setuid_program, private))
    private = f"/proc/self/fd/{file}"

    def who(**options: Any) -> str:
        command = [f"/proc/self/fd/{program}", "-u"]
        done = subprocess.run(
            command, capture_output=True, text=True, check=True, pass_fds=[program], **options
        )
        return done.stdout.strip()

    before = who(user=uid)
    credentials.drop(uid, gid)
    return {
        "set-user-ID program before": before,
        "set-user-ID program": who(),
        "setuid(0)": attempt(lambda: os.setuid(0)),
        "seteuid(0)": attempt(lambda: os.seteuid(0)),
        "setresuid(-1, -1, 0)": attempt(lambda: os.setresuid(-1, -1, 0)),
        "setgid(0)": attempt(lambda: os.setgid(0)),
        "setgroups": attempt(lambda: os.setgroups([0])),
        "capset": attempt(
            lambda: _libc.syscall(
                "capset", credentials._CAPABILITY_HEADER, b"\x01" + bytes(3) + b"\x01" + bytes(19)
            )
        ),
        "raise ambient": attempt(lambda: _libc.prctl(CAP_AMBIENT, RAISE, KILL)),
        "undo no_new_privs": attempt(lambda: _libc.prctl(38, 0)),
        "undo securebits": attempt(lambda: _libc.prctl(28, 0)),
        "chown": attempt(lambda: os.chown(private, uid, gid)),
        "read root's": attempt(Path(private).read_text),
        "signal the parent": attempt(lambda: os.kill(os.getppid(), 0)),
    }


def own_entries(uid: int, gid: int) -> dict[str, str]:
    """A process reads what /proc has about it, and hands its streams on by name."""
    credentials.drop(uid, gid)
    r, w = os.pipe()
    return {
        "environ": attempt(Path("/proc/self/environ").read_bytes),
        "maps": attempt(Path("/proc/self/maps").read_bytes),
        "memory": attempt(lambda: os.close(os.open("/proc/self/mem", os.O_RDWR))),
        "a descriptor": attempt(lambda: os.close(os.open(f"/proc/self/fd/{r}", os.O_RDONLY))),
        "another": attempt(lambda: os.close(os.open(f"/proc/self/fd/{w}", os.O_WRONLY))),
    }


def umask(uid: int, gid: int, wanted: int) -> int:
    credentials.drop(uid, gid, umask=wanted)
    return os.umask(0)


def single_uid(groups: bool) -> dict[str, Any]:
    """An ordinary user in a user namespace that maps one id: root there, nobody else to become."""
    if os.geteuid() == 0:
        os.setgroups([44] if groups else [])
        os.setresgid(54321, 54321, 54321)
        os.setresuid(54321, 54321, 54321)
        # The change made our entries in /proc root's, and the maps with them.
        _libc.prctl(4, 1)
    uid, gid = os.getuid(), os.getgid()
    assert ctypes.CDLL(None, use_errno=True).unshare(NEWUSER) == 0
    for name, content in (
        ("setgroups", "deny"), ("uid_map", f"1000 {uid} 1"), ("gid_map", f"1000 {gid} 1")
    ):  # fmt: skip
        Path(f"/proc/self/{name}").write_text(content)
    before = status()
    refused = attempt(lambda: credentials.drop(1000, 1000)) if groups else ""
    result = credentials.drop(1000, 1000, single=True)
    return {"before": before, "refused": refused, "result": asdict(result), "status": status()}


def unprivileged() -> dict[str, Any]:
    """No namespace, no root: nothing to lose but the ways to gain."""
    if os.geteuid() == 0:
        credentials.drop(54321, 54321)
    uid, gid = os.getuid(), os.getgid()
    result = credentials.drop(uid, gid, single=True)
    return {"result": asdict(result), "status": status(), "uid": uid}


def another_uid_without_rights() -> str:
    if os.geteuid() == 0:
        credentials.drop(54321, 54321)
    return attempt(lambda: credentials.drop(54322, 54322, single=True))


def no_keyring(answer: int) -> dict[str, Any]:
    without("keyctl", answer=answer)
    return asdict(credentials.drop(os.getuid(), os.getgid(), single=True))
