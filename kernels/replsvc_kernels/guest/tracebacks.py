"""Errors as a model should read them: plain text, the user's own frames, libraries in one line.

The standard library's `TracebackException` does the chains, groups, notes and carets; only what it
prints of the stack is ours.
"""

from __future__ import annotations

import codeop
import os
import re
import site
import sys
import sysconfig
import traceback
from itertools import groupby
from typing import Any, NamedTuple

MAX_TEXT = 20_000
MAX_LINE = MAX_TEXT + 100
MAX_LINES = 800
MAX_FRAMES = 40
CELL = re.compile(r'File "<ipython-input-(\d+)-[0-9a-f]+>", line (\d+)(, in <module>)?')
_CELL_NAME = re.compile(r"<ipython-input-(\d+)-[0-9a-f]+>")
_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_INSTALLED = re.compile(r"[/\\](?:site|dist)-packages[/\\]([^/\\]+)")
_NAMED = re.compile(r"<frozen ([\w.]+)>")
# what Cython says of a wheel's compiled modules, by a path where it was built
_COMPILED = (".pyx", ".pxi", ".pxd")
OWN_NAMES = ("<string>", "<stdin>", "<timed ", "<magic-", "<ipython-input-")
RUNNING = "asyncio.run() cannot be called from a running event loop"

extension_files: set[str] = set()
"""Files of setup code: their frames are always shown."""

_machinery: tuple[str, ...] = (
    os.path.dirname(os.path.abspath(__file__)) + os.sep,
    # what compiles a cell
    str(codeop.__file__),
)


class Failure(NamedTuple):
    """An exception as text: its type's name, its message, and the lines of its traceback.

    `left_out` is how many characters of the message are in neither.
    """

    ename: str
    evalue: str
    lines: list[str]
    left_out: int = 0


def hide_packages(*modules: Any) -> None:
    """Frames of these packages are the machinery under user code, and are never shown."""
    global _machinery
    _machinery += tuple(os.path.dirname(module.__file__) + os.sep for module in modules)


def render(value: BaseException, tb: Any, *, only: bool = False) -> Failure:
    """Describe `value`; `only` leaves the stack out. Never raises, whatever the exception does."""
    ename = _bounded(str(getattr(type(value), "__name__", "Exception")), 200)
    try:
        evalue = _CELL_NAME.sub(r"Cell In[\1]", str(value))
    except BaseException:  # noqa: BLE001 - a broken __str__ must not cost the rest
        evalue = f"<exception str() of {ename} failed>"
    try:
        text = _text(value, None if only else tb)
    except BaseException as error:  # noqa: BLE001
        text = f"{ename}: {evalue}\n(its traceback can't be shown: {type(error).__name__})"
    if RUNNING in evalue:
        text += "Hint: this cell runs inside the kernel's event loop; write `await ...` instead.\n"
    lines = [_bounded(plain(line), MAX_LINE) for line in text.rstrip("\n").split("\n")]
    if len(lines) > MAX_LINES:
        kept = MAX_LINES // 2
        gone = f"... {len(lines) - 2 * kept} lines left out ..."
        lines = [*lines[:kept], gone, *lines[-kept:]]
    evalue = plain(evalue)
    left_out = max(0, len(evalue) - MAX_TEXT)
    return Failure(plain(ename), _bounded(evalue, MAX_TEXT), lines, left_out)


def cut(tb: Any) -> None:
    """Take our own frames off a traceback's end: kept, they would keep the cell's pipes open."""
    last = None
    while tb is not None:
        if not tb.tb_frame.f_code.co_filename.startswith(_machinery):
            last = tb
        tb = tb.tb_next
    if last is not None:
        last.tb_next = None


def plain(text: str) -> str:
    """`text` without terminal sequences, and with lone surrogates shown escaped."""
    return _ANSI.sub("", text).encode("utf-8", "backslashreplace").decode()


def _text(value: BaseException, tb: Any) -> str:
    options: dict[str, Any] = {"compact": True} if sys.version_info >= (3, 10) else {}
    top = traceback.TracebackException(type(value), value, tb, **options)
    waiting: list[Any] = [top]
    seen: set[int] = set()
    while waiting:
        node = waiting.pop()
        if node is None or id(node) in seen:
            continue
        seen.add(id(node))
        # a stack of None is one without the "Traceback" line, as for a syntax error in the cell
        node.stack = _Frames(frame for frame in node.stack or () if _is_shown(frame)) or None
        node.format_exception_only = _Bounded(node.format_exception_only)
        waiting += [node.__cause__, node.__context__, *(getattr(node, "exceptions", None) or ())]
    return CELL.sub(r"Cell In[\1], line \2", "".join(top.format()))


class _Bounded:
    """`format_exception_only` with a bound on its length."""

    def __init__(self, stock: Any) -> None:
        self._stock = stock

    def __call__(self, **options: Any) -> list[str]:
        text = "".join(self._stock(**options))
        return [_bounded(text.rstrip("\n"), MAX_TEXT) + "\n"]


class _Frames(traceback.StackSummary):
    """A stack that shows the user's frames and counts the libraries'."""

    def format(self, **_options: Any) -> list[str]:
        shown: list[str] = []
        for own, run in groupby(self, _is_own):
            frames = list(run)
            if own:
                shown += _own(frames)
                continue
            last = [frames.pop()] if frames[-1] is self[-1] else []
            if frames:
                plural = "s" if len(frames) > 1 else ""
                names = list(dict.fromkeys(_library(frame.filename) for frame in frames))
                more = ", ..." if len(names) > 4 else ""
                shown.append(
                    f"  ... {len(frames)} frame{plural} in {', '.join(names[:4])}{more} ...\n"
                )
            shown += [_one(frame) for frame in last]
        return shown


def _own(frames: list[traceback.FrameSummary]) -> list[str]:
    shown: list[str] = []
    for _, run in groupby(frames, lambda frame: (frame.filename, frame.lineno, frame.name)):
        same = list(run)
        shown += [_one(frame) for frame in same[:3]]
        if len(same) > 3:
            plural = "s" if len(same) > 4 else ""
            shown.append(f"  [Previous line repeated {len(same) - 3} more time{plural}]\n")
    if len(shown) > MAX_FRAMES:
        kept = MAX_FRAMES // 2
        gone = f"  ... {len(shown) - 2 * kept} frames left out ...\n"
        shown = [*shown[:kept], gone, *shown[-kept:]]
    return shown


def _one(frame: traceback.FrameSummary) -> str:
    return traceback.StackSummary.from_list([frame]).format()[0]


def _is_shown(frame: traceback.FrameSummary) -> bool:
    name = frame.filename
    return not (name.startswith(_machinery) or name.startswith("<decorator-gen-"))


def _is_own(frame: traceback.FrameSummary) -> bool:
    name = frame.filename
    if name in extension_files:
        return True
    if name.startswith("<"):
        return name.startswith(OWN_NAMES)
    return not (_INSTALLED.search(name) or name.startswith(_LIBRARIES) or name.endswith(_COMPILED))


def _library(filename: str) -> str:
    found = _INSTALLED.search(filename) or _NAMED.match(filename)
    if found:
        name = found.group(1)
        if not filename.startswith("<"):
            return os.path.splitext(name)[0]
        return name.split(".")[0]
    for root in _LIBRARIES:
        if filename.startswith(root):
            return os.path.splitext(filename[len(root) :].split(os.sep, maxsplit=1)[0])[0]
    if filename.startswith("<"):
        return filename
    if filename.endswith(_COMPILED) and not os.path.isabs(filename):
        return filename.replace("\\", "/").split("/", maxsplit=1)[0]
    return os.path.basename(filename)


def _bounded(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    head, tail = limit * 3 // 4, limit // 4
    gone = len(text) - head - tail
    return f"{text[:head]} ... [{gone} of {len(text)} characters left out] ... {text[-tail:]}"


def _library_roots() -> tuple[str, ...]:
    paths = {sysconfig.get_path(name) for name in ("purelib", "platlib", "stdlib", "platstdlib")}
    paths.update(site.getsitepackages() if hasattr(site, "getsitepackages") else ())
    roots = {os.path.join(path, "") for path in paths if path}
    return tuple(sorted(roots, key=len, reverse=True))


_LIBRARIES = _library_roots()
