"""The kernel: what a request does, from its pipes to its reply."""

# mypy: disallow-untyped-calls=False
# IPython's and ipykernel's classes carry no types

from __future__ import annotations

import asyncio
import inspect
import os
import resource
import signal
import sys
import threading
import time
from typing import Any

from ipykernel.ipkernel import IPythonKernel
from traitlets import Any as AnyTrait
from traitlets import Type

from . import bounds, brief, compat, history, replaced
from .asking import Asker
from .bridge import Bridge
from .capture import Cell
from .setup import SetupCode, Setups
from .shell import GuestShell
from .spares import give_up


class GuestKernel(IPythonKernel):
    """One cell at a time, each with its own pipes. `plumb` before `start`."""

    shell: Any
    session: Any
    shell_class = Type(GuestShell)
    shell_stream = AnyTrait(None)  # `warm` has another than a ZMQStream
    msg_types = [*IPythonKernel.msg_types, "setup_request"]  # noqa: RUF012 - as the base class has it
    interrupts: Any = None
    capture: Any = None
    link: Any = None
    forks: Any = None
    streams: Any = None
    busy = False
    is_let_go = False

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        compat.tune_kernel(self)
        self._awaiting = False
        self._usage: dict[str, Any] = {}
        self.asker = Asker(self)
        self.bridge = Bridge(self)
        self.setups = Setups(self.shell)
        self._lent = replaced.Lent()

    async def dispatch_shell(self, msg: Any, *args: Any, **options: Any) -> None:
        """Handle one request: our host's cells in `brief`, all others as the base class does."""
        request = None if compat.is_aborting(self) else brief.read(msg, self.session)
        if request is None:
            try:
                await super().dispatch_shell(msg, *args, **options)
            finally:
                self._lent.end()
        else:
            await brief.run(self, request)

    def dispatch_control(self, msg: Any, *args: Any, **options: Any) -> Any:
        """Handle one message in the control thread: replies to calls of tools with no ceremony."""
        if self.bridge.read(msg):
            return None
        return super().dispatch_control(msg, *args, **options)

    # -- what runs ------------------------------------------------------------------------------

    async def do_execute(
        self,
        code: str,
        silent: bool,
        store_history: bool = True,
        user_expressions: dict[str, str] | None = None,
        allow_stdin: bool = False,
        *,
        cell_meta: Any = None,
        cell_id: Any = None,
    ) -> dict[str, Any]:
        """Run one cell; the reply's content. Nothing that the cell does gets past this."""
        del cell_id
        self.interrupts.begin()
        self.shell.begin_cell()
        if allow_stdin:
            self.asker.begin(self.get_parent("shell"), compat.shell_ident(self))
        compat.allow_stdin(self, allow_stdin)
        cpu = time.process_time()
        asked = (cell_meta or {}).get("replsvc") or {}
        error: BaseException | None = None
        expressions: dict[str, Any] = {}
        environment = _Environment(asked.get("env") or {})
        if "tools" in asked:
            self.bridge.offer(asked["tools"])
        try:
            self._begin(asked.get("pair"))
            if asked:
                self.bridge.begin()
            if asked.get("brief"):
                self.capture.begun()
            environment.enter()
            error = await self._run(code, silent, store_history)
            if error is None and user_expressions:
                expressions = self.shell.user_expressions(user_expressions)
            content = self._content(error, expressions)
        except BaseException as caught:  # noqa: BLE001 - there is always a reply
            error = caught
            content = self._content(caught, {})
        finally:
            self._leave_child(error)
            environment.leave()
            self._end()
        if not asked.get("brief"):
            self._lent.begin()
        compat.forget_outputs(self.shell)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        self._usage = {"cpu_s": time.process_time() - cpu, "max_rss": peak}
        return content

    async def setup_request(self, stream: Any, ident: Any, parent: Any) -> None:
        """Run one extension's setup code, outside history and execution count."""
        content = parent["content"]
        self.interrupts.begin()
        self.shell.begin_cell()
        compat.allow_stdin(self, False)
        started = time.monotonic()
        error: BaseException | None = None
        try:
            self._begin(content.get("pair"))
            code = SetupCode.parse(content)
            with compat.no_running_loop():
                reply, error = self.interrupts.run(lambda: self.setups.run(code))
        except BaseException as caught:  # noqa: BLE001
            reply, error = None, caught
        finally:
            self._leave_child(error)
            self._end()
        if error is not None:
            reply = self.setups.describe(error)
        self._lent.begin()
        reply["duration_s"] = time.monotonic() - started
        self.session.send(stream, "setup_reply", reply, parent, ident)

    async def _run(self, code: str, silent: bool, store_history: bool) -> BaseException | None:
        shell = self.shell
        error: BaseException | None
        late: BaseException | None
        code = code.removeprefix("\ufeff")
        transformed, problem = code, None
        try:
            transformed = shell.transform_cell(code)
        except Exception:  # noqa: BLE001 - the shell reports it as the cell's error
            problem = sys.exc_info()
        awaits = shell.should_run_async(
            code, transformed_cell=transformed, preprocessing_exc_tuple=problem
        )
        running = shell.run_cell_async(
            code,
            store_history=store_history,
            silent=silent,
            transformed_cell=transformed,
            preprocessing_exc_tuple=problem,
        )

        def finish(result: Any) -> None:
            if shell.has_hooks:
                # they may take their time, or end the process
                self.session.let_go()
            shell.events.trigger("post_execute")
            if not silent:
                shell.events.trigger("post_run_cell", result)

        if awaits and compat.is_asyncio_runner(shell):
            self._awaiting = True
            try:
                result, error = await self.interrupts.wait(asyncio.ensure_future(running))
            finally:
                self._awaiting = False
            _, late = self.interrupts.run(lambda: finish(result))
        else:
            runner = shell.loop_runner if awaits else _drive

            def run() -> Any:
                result = None
                try:
                    result = runner(running)
                finally:
                    finish(result)
                return result

            with compat.no_running_loop():
                result, error = self.interrupts.run(run)
            if inspect.getcoroutinestate(running) == inspect.CORO_CREATED:
                # An interrupt came first. Left alone it would warn, in a later cell's output.
                running.close()
            late = None
        if error is None and result is not None:
            error = result.error_before_exec or result.error_in_exec
        if error is None and shell.display_failed:
            error = sys.last_value
        return late if error is None else error

    def _content(self, error: BaseException | None, expressions: dict[str, Any]) -> dict[str, Any]:
        shell = self.shell
        content: dict[str, Any] = {
            "status": "ok",
            "execution_count": shell.execution_count - 1,
            "user_expressions": expressions,
            "payload": shell.payload_manager.read_payload(),
        }
        shell.payload_manager.clear_payload()
        if content["payload"] and bounds.too_much(content["payload"], bounds.MAX_PAYLOAD_BYTES):
            content["payload"] = []
            replaced.say("[left out: the text for the next input is too large]")
        if error is None and shell.failure is not None and not self.is_child():
            # of a cell that the cell ran
            replaced.say("\n".join(shell.failure.lines))
        if error is not None and not self.is_child():
            failure = shell.failure or shell.report(error, error.__traceback__)
            content.update(
                status="error",
                ename=failure.ename,
                evalue=failure.evalue,
                traceback=failure.lines,
            )
            if failure.left_out:
                content["left_out"] = failure.left_out
        return content

    def finish_metadata(self, parent: Any, metadata: Any, reply_content: Any) -> Any:
        """Add what the cell used to its reply."""
        metadata = super().finish_metadata(parent, metadata, reply_content)
        usage = self.used()
        if usage:
            # With these at hand nothing of the cell is missing: the host need not wait for idle.
            metadata["replsvc"] = {**usage, "published": self.session.published(parent)}
        return metadata

    def used(self) -> dict[str, Any]:
        """What the last cell used, once; empty when it is known already."""
        usage, self._usage = self._usage, {}
        return usage

    def _publish_execute_input(self, code: str, parent: Any, execution_count: int) -> None:
        """Nothing to the host, which has the code; Jupyter's own clients are told as ever."""
        if "replsvc" not in (parent.get("metadata") or {}):
            super()._publish_execute_input(code, parent, execution_count)

    async def do_history(  # type: ignore[override] # its defaults are `find`'s
        self, hist_access_type: str, output: bool, raw: bool, **which: Any
    ) -> Any:
        """See `history.find`."""
        found = history.find(
            self.shell.history_manager, hist_access_type, output=output, raw=raw, **which
        )
        return {"status": "ok", "history": found}

    # -- its pipes ------------------------------------------------------------------------------

    def _begin(self, number: Any) -> None:
        """Bring the pipes of pair `number` to the front; without one, pipes of its own.

        Raises `PairLost` for pipes that were passed by: the host's fault, said in the reply.
        """
        self.busy = True
        parent = self.get_parent("shell").get("header", {})
        if number is None:
            cell = self.streams.cell(parent)
        else:
            cell = Cell(self.link.take(int(number)), parent)
        self._place(lambda: self.capture.begin(cell))

    def _place(self, move: Any) -> None:
        """Bring other pipes to the front, whatever limit of open files a cell has set itself."""
        try:
            move()
        except OSError:
            with self.link.spares:
                try:
                    move()
                except OSError:
                    give_up()

    def stream(self, name: str, parent: dict[str, Any], text: str) -> None:
        """Publish output of a cell whose client gave no pipes."""
        content = {"name": name, "text": text}
        ident = f"stream.{name}".encode()
        self.session.send(self.iopub_socket, "stream", content, parent, ident)

    def _end(self) -> None:
        self._place(self.capture.end)
        self.interrupts.end()
        self.busy = False
        self.asker.end()
        self.bridge.end()
        asyncio.get_running_loop().call_soon(self.link.prefetch)

    # -- children, signals, stdin ---------------------------------------------------------------

    def is_child(self) -> bool:
        """Whether this process was forked from the kernel's."""
        return self.forks is not None and self.forks.is_child()

    def awaiting(self) -> bool:
        """Whether this thread runs an awaiting cell on the kernel's loop."""
        return self._awaiting and threading.current_thread() is threading.main_thread()

    def answered(self) -> bool:
        """Whether someone answers what whoever calls this would ask."""
        return self.asker.problem() is None

    def _leave_child(self, error: BaseException | None) -> None:
        if self.is_child():
            self.forks.leave(error)

    def pre_handler_hook(self) -> None:
        """Nothing: `interrupts` decides where SIGINT strikes."""

    def post_handler_hook(self) -> None:
        """Nothing, likewise."""

    def raw_input(self, prompt: object = "") -> str:
        """`input()`: the client's answer, or an error at once when no client answers."""
        return self.asker.ask("input()", prompt)

    def getpass(self, prompt: object = "Password: ", *_args: Any, **_options: Any) -> str:
        """`getpass.getpass()`, on the same terms."""
        return self.asker.ask("getpass()", prompt, password=True)

    async def shutdown_request(self, stream: Any, ident: Any, parent: Any) -> None:
        """Answer, then end: at once when idle, else as SIGTERM would. Children are the host's.

        Our own host wants no answer, nor anything else that is on its way to a socket.
        """
        self.is_let_go = parent["content"].get("replsvc") is True
        if not self.is_let_go:
            content = {"status": "ok", "restart": bool(parent["content"].get("restart"))}
            self.session.send(stream, "shutdown_reply", content, parent, ident=ident)
            topic = compat.topic(self, "shutdown")
            self.session.send(self.iopub_socket, "shutdown_reply", content, parent, ident=topic)
        if self.busy:
            os.kill(os.getpid(), signal.SIGTERM)
        else:
            self.io_loop.add_callback(self.io_loop.stop)


class _Environment:
    """Variables for one cell; `leave` restores exactly what was there."""

    def __init__(self, wanted: dict[str, str]) -> None:
        self._wanted = wanted
        self._before: dict[str, str | None] = {}

    def enter(self) -> None:
        """Set them all. Raises `ValueError`, with nothing set, for what no environment can hold."""
        for name, value in self._wanted.items():
            if not all(isinstance(part, str) for part in (name, value)):
                raise ValueError(f"environment variable {name!r} and its value must be strings")
            if not name or "=" in name or "\0" in name or "\0" in value:
                raise ValueError(
                    f"environment variable {name!r}: a name is not empty and has no '=', "
                    "and neither it nor its value has a NUL"
                )
            os.fsencode(name), os.fsencode(value)
        self._before = {name: os.environ.get(name) for name in self._wanted}
        os.environ.update(self._wanted)

    def leave(self) -> None:
        """Put back what was there, whatever the cell did to it."""
        for name, value in self._before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _drive(coroutine: Any) -> Any:
    """Run a coroutine that awaits nothing."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return stop.value
    coroutine.close()
    raise RuntimeError("this cell awaits something, and was not seen to")
