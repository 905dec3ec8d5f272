"""Pid 1 of a session: it reaps, it can't be ended from inside, and its end ends all."""

from __future__ import annotations

import shutil
import signal
import struct
import subprocess
from pathlib import Path

import attempts_init
import pytest
from inside import found

from replsvc_kernels.sandbox import init
from replsvc_kernels.sandbox._syscalls import ARCHITECTURE
from replsvc_kernels.sandbox.init._code import CODE

MODULE = attempts_init.__name__
SOURCES = Path(init.__file__).parent
NATIVE = pytest.param(
    True,
    id="machine code",
    marks=pytest.mark.skipif(ARCHITECTURE not in CODE, reason=f"no code for {ARCHITECTURE}"),
)
either = pytest.mark.parametrize("native", [NATIVE, pytest.param(False, id="Python")])
needs_pidns = pytest.mark.needs("pidns")


def test_every_architecture_has_its_source_beside_it() -> None:
    sources = {path.stem.removeprefix("init_") for path in SOURCES.glob("*.S")}
    assert sources == CODE.keys()


def text_of(commands: list[list[str]], directory: Path) -> bytes:
    for command in commands:
        subprocess.run(command, cwd=directory, check=True, timeout=60)
    return (directory / "init.bin").read_bytes()


@pytest.mark.needs("gcc")
@pytest.mark.skipif(ARCHITECTURE not in CODE, reason=f"no code for {ARCHITECTURE}")
def test_the_code_is_what_the_compiler_makes_of_the_source(tmp_path: Path) -> None:
    shutil.copy(SOURCES / f"init_{ARCHITECTURE}.S", tmp_path / "init.S")
    commands = [
        ["gcc", "-c", "-o", "init.o", "init.S"],
        ["objcopy", "-O", "binary", "-j", ".text", "init.o", "init.bin"],
    ]
    assert text_of(commands, tmp_path) == CODE[ARCHITECTURE]


@pytest.mark.needs("llvm-mc")
@pytest.mark.parametrize("architecture", sorted(CODE))
def test_the_code_is_what_llvm_makes_of_the_source(tmp_path: Path, architecture: str) -> None:
    shutil.copy(SOURCES / f"init_{architecture}.S", tmp_path / "init.S")
    commands = [
        ["llvm-mc", f"-triple={architecture}-linux-gnu", "-filetype=obj", "-o=init.o", "init.S"],
        ["llvm-objcopy", "-O", "binary", "-j", ".text", "init.o", "init.bin"],
    ]
    assert text_of(commands, tmp_path) == CODE[architecture]


@pytest.mark.parametrize("architecture", sorted(CODE))
def test_the_image_is_an_executable_whose_entry_is_the_code(architecture: str) -> None:
    image = init.image(architecture)
    assert image[:7] == b"\x7fELF\x02\x01\x01"
    kind, machine = struct.unpack_from("<HH", image, 16)
    assert (kind, machine) == (2, {"x86_64": 62, "aarch64": 183}[architecture])
    (entry, table) = struct.unpack_from("<QQ", image, 24)
    flags, offset, address, _, in_file, in_memory, align = struct.unpack_from(
        "<4xIQQQQQQ", image, table
    )
    assert flags == 5  # readable and executable, never writable
    assert image[entry - address + offset :] == CODE[architecture]
    assert in_file == in_memory == len(image)
    assert address % align == offset % align
    assert entry % 4 == 0
    assert len(image) < 512


@needs_pidns
@pytest.mark.needs("root")  # nobody else may look
@either
def test_it_is_pid_1_of_the_new_namespace_and_keeps_nothing(native: bool) -> None:
    state = found(MODULE, "state", native)
    assert state["pids"] == ["1"]
    assert state["session"]
    assert state["threads"] == "1"
    if native:
        assert state["resident_kb"] < 100


@needs_pidns
@either
def test_orphans_are_reaped(native: bool) -> None:
    assert found(MODULE, "orphans", native, 5) == {
        "adopted": 5, "left": [], "kernel": 0, "init lives": True
    }  # fmt: skip


@needs_pidns
@either
def test_no_signal_from_inside_ends_or_stops_it(native: bool) -> None:
    assert found(MODULE, "attacks_from_inside", native) == {"told": "done", "state": "S"}


@needs_pidns
@either
def test_its_end_ends_whatever_ignores_everything(native: bool) -> None:
    assert found(MODULE, "its_end", native) == {
        "gone": True, "early": 0, "ended": signal.SIGKILL, "a new process": "ENOMEM"
    }  # fmt: skip


@pytest.mark.needs("root")
@either
def test_its_entries_in_proc_are_roots_whoever_it_is(native: bool) -> None:
    assert found(MODULE, "undumpable", native) == [54321, 0]


@either
def test_it_outlives_the_process_that_started_it(native: bool) -> None:
    assert found(MODULE, "outlives_its_parent", native) is True
