"""The interactive shell: IPython's, without disk, pager, pty or exit, and with readable errors."""

# mypy: disallow-untyped-calls=False
# IPython's and ipykernel's classes carry no types

from __future__ import annotations

import asyncio
import codeop
import linecache
import os
import re
import signal
import subprocess
import sys
from typing import Any

from ipykernel.displayhook import ZMQShellDisplayHook
from ipykernel.zmqshell import ZMQDisplayPublisher, ZMQInteractiveShell
from IPython.core import page
from IPython.core.autocall import ZMQExitAutocall
from IPython.core.compilerop import CachingCompiler, code_name
from IPython.core.error import TryNext, UsageError
from IPython.core.profiledir import ProfileDir
from traitlets import Type, default, observe

from . import compat, replaced
from .capture import current
from .figures import PLAIN, DisplayFormatter
from .plain import is_plain, names_nothing
from .streams import StreamedCell
from .tracebacks import Failure, cut, render

# where str.splitlines breaks a line and Python's tokenizer does not
ODD_BREAKS = re.compile("[\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029]")


class NoProfile(ProfileDir):
    """A profile that is nowhere: no start-up file is read, no directory is made."""

    @observe("location")
    def _location_changed(self, change: Any) -> None:
        """Nothing is made."""

    def check_dirs(self) -> None:
        """Nothing is made."""


class CellCompiler(CachingCompiler):
    """Names cells `<ipython-input-COUNT-HASH>`, and keeps their lines as Python counts them."""

    def __init__(self) -> None:
        super().__init__()
        self.reset_compiler_flags()

    def reset_compiler_flags(self) -> None:
        """As IPython's, less the flag that turns Python's own message into "incomplete input"."""
        super().reset_compiler_flags()
        self.flags &= ~getattr(codeop, "PyCF_ALLOW_INCOMPLETE_INPUT", 0)

    def get_code_name(self, raw_code: str, transformed_code: str, number: int) -> str:
        """The name for one cell's code."""
        del raw_code
        return str(code_name(transformed_code.encode("utf-8", "backslashreplace").decode(), number))

    def cache(self, transformed_code: str, number: int = 0, raw_code: str | None = None) -> str:
        """Name the code, and keep its lines for tracebacks."""
        name = str(super().cache(transformed_code, number, raw_code))
        lines = transformed_code.replace("\r\n", "\n").replace("\r", "\n").split("\n")
        linecache.cache[name] = (
            len(transformed_code),
            None,
            [line + "\n" for line in lines],
            name,
        )
        return name


class _ByCell:
    """The parent of a display message is its cell's request, whatever thread or task speaks."""

    _spoken: dict[str, Any] = {}  # noqa: RUF012 - replaced, never changed

    @property
    def parent_header(self) -> dict[str, Any]:
        cell = current.get(None)
        return cell.parent if cell is not None and cell.parent else self._spoken

    @parent_header.setter
    def parent_header(self, header: dict[str, Any]) -> None:
        self._spoken = header


class DisplayPublisher(_ByCell, ZMQDisplayPublisher):
    """`display()` for its own cell."""

    _spoken: dict[str, Any] = {}  # noqa: RUF012

    def publish(  # type: ignore[override] # IPython 9 names more of them
        self, data: Any, metadata: Any = None, **options: Any
    ) -> None:
        """Publish, unless it is a figure that the cell has shown already."""
        shell: Any = self.shell
        if (
            not shell.display_formatter.is_repeated(data)
            or options.get("update")
            or options.get("transient")
        ):
            super().publish(data, metadata, **options)

    def _flush_streams(self) -> None:
        replaced.flush()


class DisplayHook(_ByCell, ZMQShellDisplayHook):
    """The last expression's value, for its own cell."""

    _spoken: dict[str, Any] = {}  # noqa: RUF012

    def write_format_data(self, format_dict: Any, md_dict: Any = None) -> None:
        """Say the value; of a figure that the cell has shown already, only its text."""
        shell: Any = self.shell
        if shell.display_formatter.is_repeated(format_dict):
            format_dict = {PLAIN: format_dict[PLAIN]} if PLAIN in format_dict else {}
            md_dict = {}
        super().write_format_data(format_dict, md_dict)

    def cull_cache(self) -> None:
        """Let go of the oldest values. The base class warns of it, in the output of some cell."""
        shell: Any = self.shell
        values = shell.user_ns.get("_oh", {})
        for number in sorted(values)[: max(2, int(len(values) * self.cull_fraction))]:
            shell.user_ns.pop(f"_{number}", None)
            del values[number]

    def finish_displayhook(self) -> None:
        """Publish the value. The base class would flush, and lose it to a stream that can't."""
        replaced.flush()
        message, self.msg = self.msg, None
        if not message or not message["content"]["data"] or self.session is None:
            return
        for hook in getattr(self, "_hooks", ()):
            message = hook(message)
            if message is None:
                return
        self.session.send(self.pub_socket, message, ident=self.topic)

    def quiet(self) -> Any:
        """Whether the cell ends in a semicolon; the base class tokenizes it to know."""
        try:
            shell: Any = self.shell
            cell = shell.history_manager.input_hist_parsed[-1]
        except IndexError:
            return False
        return ";" in cell and super().quiet()


class Exit(ZMQExitAutocall):
    """`exit` and `quit`: an exception like `sys.exit`, as a kernel has nobody to ask."""

    def __call__(self, code: Any = None) -> None:
        """Raise SystemExit(code)."""
        raise SystemExit(*(() if code is None else (code,)))


class GuestShell(compat.QuietShell, ZMQInteractiveShell):
    """Reports errors as `tracebacks` renders them; `failure` is the current cell's last one."""

    displayhook_class = Type(DisplayHook)
    display_pub_class = Type(DisplayPublisher)
    failure: Failure | None = None
    display_failed = False
    _running: Any = None

    @default("exiter")
    def _exiter_default(self) -> Any:
        return Exit(self)

    def __init__(self, **options: Any) -> None:
        compat.without_database()
        super().__init__(**{**options, "compiler_class": CellCompiler})
        self.db = compat.MemoryStore()
        self._keep_blank_lines()
        # before the stock hook, which is at 99
        self.set_hook("show_in_pager", _show_page, 90)
        self._stock_transforms = self._transforms()

    def init_ipython_dir(self, ipython_dir: Any) -> None:
        """None: it would be made in the workspace, and read from there."""

    def init_environment(self) -> None:
        """Leave it alone: it is what the host declared, and no terminal reads our output."""

    def init_virtualenv(self) -> None:
        """Leave `sys.path` alone: the interpreter that was asked for is the environment."""

    def init_display_formatter(self) -> None:
        """Make the one that shows a figure once."""
        self.display_formatter = self._figures = DisplayFormatter(parent=self)
        self.configurables.append(self.display_formatter)  # type: ignore[arg-type] # so does IPython

    def begin_cell(self) -> None:
        """Forget the last cell's failure and figures."""
        self.failure, self.display_failed, self._running = None, False, None
        self._figures.begin_cell()

    def run_code(self, code_obj: Any, result: Any = None, **options: Any) -> Any:
        """See the base class; `result` tells whether an error that is reported ended the cell."""
        self._running = result
        return super().run_code(code_obj, result, **options)

    @property
    def has_hooks(self) -> bool:
        """Whether anybody but IPython wants to be called after a cell."""
        ours = (self, self.display_pub, self.displayhook)
        return any(
            not any(getattr(hook, "__self__", None) is one for one in ours)
            for event in ("post_execute", "post_run_cell")
            for hook in self.events.callbacks[event]
        )

    def transform_cell(self, raw_cell: str) -> str:
        """Turn IPython's syntax into Python's. What it can't read is left for Python to refuse."""
        if is_plain(raw_cell) and self._transforms() == self._stock_transforms:
            return self._transform_plain(raw_cell)
        return self._transform_any(raw_cell)

    def _transform_plain(self, raw_cell: str) -> str:
        cell = raw_cell if raw_cell.endswith("\n") else raw_cell + "\n"
        if "\n" in cell[:-1] or names_nothing(cell):
            return cell
        # a line of its own may be a magic's name, a macro, or `exit`
        lines: Any = self.prefilter_manager
        with self.builtin_trap:
            return str(lines.prefilter_lines(cell)) + "\n"

    def _transforms(self) -> list[Any]:
        """Whatever may change a cell: user code can add to it."""
        manager: Any = self.input_transformer_manager
        lines: Any = self.prefilter_manager
        return [
            *(*manager.cleanup_transforms, None, *manager.line_transforms, None),
            *(*manager.token_transformers, None, *self.input_transformers_post, None),
            *(*lines.transformers, None, *lines.checkers),
        ]

    def _transform_any(self, raw_cell: str) -> str:
        odd = {
            char: chr(0xF0000 + n)
            for n, char in enumerate(sorted(set(ODD_BREAKS.findall(raw_cell))))
        }
        cell = raw_cell
        for char, stand_in in odd.items():
            cell = cell.replace(char, stand_in)
        try:
            cell = str(super().transform_cell(cell))
        except Exception:
            if _compiles(raw_cell):
                raise
            return raw_cell if raw_cell.endswith("\n") else raw_cell + "\n"
        for char, stand_in in odd.items():
            cell = cell.replace(stand_in, char)
        return cell

    def _keep_blank_lines(self) -> None:
        """Leading blank lines stay, or every line number in the cell would be wrong."""
        manager = self.input_transformer_manager
        stock = list(manager.cleanup_transforms)

        def clean(lines: list[str]) -> list[str]:
            blank = 0
            while blank < len(lines) and not lines[blank].strip():
                blank += 1
            rest = lines[blank:]
            for transform in stock:
                rest = transform(rest)
            return ["\n"] * blank + rest

        manager.cleanup_transforms = [clean]

    def showtraceback(
        self,
        exc_tuple: Any = None,
        filename: Any = None,
        tb_offset: Any = None,
        exception_only: bool = False,
        running_compiled_code: bool = False,
    ) -> None:
        """Report the exception at hand as an `error` message, and remember it as the cell's."""
        del filename, tb_offset, running_compiled_code
        value, tb = self._at_hand(exc_tuple)
        if value is None:
            print("No traceback available to show.", file=sys.stderr)
            return
        interrupts = self.kernel.interrupts
        if interrupts.struck and isinstance(value, asyncio.CancelledError):
            value = KeyboardInterrupt().with_traceback(tb)
        if isinstance(value, UsageError):
            tb = None
        self.report(value, tb, only=exception_only)
        if self.call_pdb and self.kernel.answered():
            self.debugger(force=True)

    def showsyntaxerror(self, filename: Any = None, running_compiled_code: bool = False) -> None:
        """Report a syntax error: of the cell itself, or of what running code has compiled."""
        value, tb = self._at_hand(None)
        if value is None:
            return
        if filename and isinstance(value, SyntaxError):
            value.filename = filename
        self.report(value, tb if running_compiled_code else None)

    def show_usage_error(self, exc: Any) -> None:
        """Report a magic that was used wrongly."""
        self.report(exc, None)

    def report(self, value: BaseException, tb: Any, *, only: bool = False) -> Failure:
        """Publish `value` as an `error` message, and keep it for the reply."""
        failure = render(value, tb, only=only)
        cut(tb)
        self._showtraceback(type(value), value, failure.lines, failure)
        return failure

    def _showtraceback(
        self, etype: Any, evalue: Any, stb: Any, failure: Failure | None = None
    ) -> None:
        del etype
        if failure is None:
            failure = render(evalue, None)._replace(lines=[str(line) for line in stb])
        if self.kernel.is_child():
            if not isinstance(evalue, SystemExit):
                replaced.say("\n".join(failure.lines))
            return
        replaced.flush()
        if self._goes_on() and not isinstance(current.get(None), StreamedCell):
            self._last_traceback = failure.lines
            replaced.say("\n".join(failure.lines))
            return
        if self.kernel.capture is not None:
            self.kernel.capture.cell().sync()
        if getattr(self.displayhook, "msg", None) is not None:
            self.display_failed = True
        self.failure = failure
        self._last_traceback = failure.lines
        hook: Any = self.displayhook
        hook.session.send(
            hook.pub_socket,
            "error",
            {"ename": failure.ename, "evalue": failure.evalue, "traceback": failure.lines},
            hook.parent_header,
            ident=hook.topic.replace(b"execute_result", b"error") if hook.topic else None,
        )

    def _goes_on(self) -> bool:
        """Whether the cell runs on after what is reported: a display, or `%run`, has failed.

        Its reply will not say it then, so it is printed.
        """
        return (
            self._running is not None
            and self._running.error_in_exec is None
            and getattr(self.displayhook, "msg", None) is None
        )

    def system(self, cmd: str) -> None:
        """Run a command with the cell's own descriptors: no terminal, no thread, no copy."""
        cmd = self.var_expand(cmd, depth=1)
        process = subprocess.Popen(cmd, shell=True)  # noqa: S602 - this is what `!` means
        try:
            # not Popen.wait, which gives the child a quarter of a second after an interrupt
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
            code = process.wait()
        except BaseException:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(0.2)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            raise
        self.user_ns["_exit_code"] = code
        if code and getattr(self, "system_raise_on_error", False):  # IPython 9
            raise subprocess.CalledProcessError(code, cmd)

    def ask_exit(self) -> None:
        """Raise SystemExit: whether the kernel ends is the host's decision."""
        raise SystemExit

    @staticmethod
    def _at_hand(given: Any) -> tuple[Any, Any]:
        _, value, tb = given or sys.exc_info()
        if value is None:
            value, tb = getattr(sys, "last_value", None), getattr(sys, "last_traceback", None)
        if value is not None:
            sys.last_type, sys.last_value, sys.last_traceback = type(value), value, tb
            if sys.version_info >= (3, 12):
                sys.last_exc = value
        return value, tb


def _show_page(_shell: Any, *text: Any, **where: Any) -> None:
    """Pages are output for our host; Jupyter's own clients are handed them to show as they like."""
    if isinstance(current.get(None), StreamedCell):
        raise TryNext
    page.display_page(*text, **where)


def _compiles(code: str) -> bool:
    try:
        compile(code, "<cell>", "exec", dont_inherit=True)
    except (SyntaxError, ValueError, OverflowError, MemoryError):
        return False
    return True
