"""The application, in two steps: `build` imports and constructs, `plumb` makes sockets and threads.

Nothing in `build` opens a descriptor that matters or starts a thread, so that it can be done once
and forked many times.
"""

# mypy: disallow-untyped-calls=False
# IPython's and ipykernel's classes carry no types

from __future__ import annotations

import asyncio
import builtins
import gc
import getpass
import logging
import os
import signal
import sys
import warnings
from typing import Any

from . import compat, interrupts, tracebacks, versions

versions.check()
compat.without_debugger()

import ipykernel  # noqa: E402
import IPython  # noqa: E402
import tornado  # noqa: E402
import zmq  # noqa: E402
from ipykernel.control import ControlThread  # noqa: E402
from ipykernel.kernelapp import IPKernelApp  # noqa: E402
from tornado.ioloop import IOLoop  # noqa: E402
from traitlets.config import Config  # noqa: E402
from zmq.eventloop.zmqstream import ZMQStream  # noqa: E402

from .adopt import adopt  # noqa: E402
from .asking import guard_debugger, interrupt_the_debugged  # noqa: E402
from .capture import Capture  # noqa: E402
from .forks import Forks  # noqa: E402
from .hidden import hide  # noqa: E402
from .keeping import KeepingPublisher, Kept  # noqa: E402
from .kernel import GuestKernel  # noqa: E402
from .publish import GuestSession, Publisher  # noqa: E402
from .shell import NoProfile  # noqa: E402
from .streams import Streams  # noqa: E402
from .tools import ToolError  # noqa: E402

LINGER_MS = 200
BACKEND = "module://matplotlib_inline.backend_inline"


def build() -> GuestApp:
    """The application with its kernel and shell, without a socket or thread."""
    app: GuestApp = GuestApp.instance(config=_config())
    app.construct()
    return app


class GuestApp(IPKernelApp):
    """ipykernel's application, for those who look for one; it parses and reads nothing."""

    context: Any
    io_loop: Any
    kernel: Any

    def construct(self) -> None:
        """Make session, shell and kernel."""
        self.session = GuestSession(parent=self)
        guard_debugger(lambda: bool(self.kernel.answered()))
        self.init_pdb()
        interrupt_the_debugged()
        self.interrupts = interrupts.Interrupts()
        self.kernel = GuestKernel.instance(
            parent=self, session=self.session, log=self.log, profile_dir=NoProfile()
        )
        self.kernel.interrupts = self.interrupts
        self.init_shell()
        builtins.input = self.kernel.raw_input
        getpass.getpass = self.kernel.getpass
        # As `display` does they stand below all names: of the user, of modules, of setup code.
        builtins.tools, builtins.ToolError = self.kernel.bridge.tools, ToolError  # type: ignore[attr-defined]
        tracebacks.hide_packages(IPython, ipykernel)
        # IPython says so after each SystemExit, and it is not true here
        warnings.filterwarnings("ignore", message="To exit: use 'exit', 'quit', or Ctrl-D")

    def plumb(self, link: Any) -> None:
        """Take the host's key, bind the sockets, start the control thread, and say ready."""
        hello, orphan = link.hello()
        self._detach_stdin()
        kernel, session = self.kernel, self.session
        session.key = hello["key"].encode()
        session.pid = os.getpid()  # it may have been made before a fork
        self.transport, self.ip = hello["transport"], hello["ip"]
        ports = hello["ports"]
        loop = asyncio.new_event_loop()
        asyncio.set_event_loop(loop)
        self.io_loop = IOLoop.current()
        compat.adopt_loop(kernel)
        compat.enable_nested_run(loop)

        self.capture = Capture(orphan, hello["nonce"])
        session.mark = self.capture.mark
        self._log_to_orphan()
        self.context = zmq.Context()
        shell, control, stdin = (
            self._bind(zmq.ROUTER, ports[name]) for name in ("shell", "control", "stdin")
        )
        iopub = self._bind(zmq.XPUB, ports["iopub"])
        self.control_thread = ControlThread(daemon=True)
        kept = Kept(session) if hello.get("keep") else None
        whole = self.interrupts.whole
        self.publisher = (
            Publisher(iopub, session, whole)
            if kept is None
            else KeepingPublisher(iopub, session, whole, kept)
        )
        kernel.shell_stream = ZMQStream(shell, self.io_loop)
        kernel.control_stream = ZMQStream(control, self.control_thread.io_loop)
        kernel.control_thread = self.control_thread
        # an error, where nobody listens, and not a question into the void
        stdin.router_mandatory = 1
        kernel.stdin_socket = kernel.asker.socket = stdin
        kernel.iopub_socket = self.iopub_socket = self.publisher
        kernel.capture, kernel.link = self.capture, link
        kernel.record_ports({f"{name}_port": port for name, port in ports.items()})
        if kept is not None:
            kept.attend(kernel)
            kernel.bridge.is_placed = False
        for speaker in (kernel.shell.displayhook, kernel.shell.display_pub):
            speaker.session, speaker.pub_socket = session, self.publisher
        kernel.forks = Forks(self.capture, link, kernel)
        kernel.forks.install(loop, kernel.awaiting)
        self._patch_create_task(loop)
        signal.signal(signal.SIGTERM, self._terminated)

        control_loop: Any = self.control_thread.io_loop.asyncio_loop  # type: ignore[attr-defined]
        self.interrupts.install(
            tuple(os.path.dirname(str(m.__file__)) for m in (IPython, ipykernel, tornado, zmq)),
            control_loop,
        )
        kernel.streams = Streams(kernel.stream, control_loop)
        self.capture.swallowed = self.interrupts.again
        self.publisher.attend(control_loop)
        link.watch(control_loop)
        self.control_thread.start()
        kernel.start()
        self._show_workspace(hello.get("hidden") or [])
        if hello.get("unused"):
            link.adopt = self._adopt
        # what lives as long as the kernel is not looked at again, whenever the user's code collects
        gc.freeze()
        link.ready(
            python=sys.version.split()[0],
            implementation=sys.implementation.name,
            ipykernel=versions.installed(),
            ipython=IPython.__version__,
        )

    def serve(self) -> None:
        """Handle requests until a shutdown; then run exit handlers and end the process."""
        loop = self.io_loop.asyncio_loop
        while True:
            try:
                loop.run_forever()
                break
            except (KeyboardInterrupt, SystemExit):
                # from a task that some cell left behind: its own end, not the kernel's
                continue
        if self.kernel.is_let_go:
            compat.run_atexit()
            self.capture.end()
            os._exit(0)
        self.control_thread.stop()
        self.control_thread.join()
        self.kernel.shell_stream.close()
        self.kernel.control_stream.close()
        self.kernel.stdin_socket.close()
        compat.run_atexit()
        self.capture.end()
        self.publisher.close()
        self.context.term()
        os._exit(0)

    def _terminated(self, number: int, _frame: Any) -> None:
        """SIGTERM: run the exit handlers, then end by it. A second one ends at once."""
        signal.signal(number, signal.SIG_DFL)
        try:
            compat.run_atexit()
        finally:
            self.capture.end()
            os.kill(os.getpid(), number)

    def _bind(self, kind: int, port: int) -> Any:
        socket = self.context.socket(kind)
        socket.linger = LINGER_MS
        if kind == zmq.ROUTER:
            socket.router_handover = 1
        else:
            # a second client must be welcomed too
            socket.setsockopt(zmq.XPUB_VERBOSE, 1)
            # A slow reader costs this process memory, never a message.
            socket.sndhwm = 0
        compat.bind(self, socket, port)
        return socket

    @staticmethod
    def _detach_stdin() -> None:
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.close(null)

    def _log_to_orphan(self) -> None:
        """What ipykernel and tornado complain of belongs to no cell."""
        handler = logging.StreamHandler(self.capture.orphan.err)
        handler.setFormatter(logging.Formatter(logging.BASIC_FORMAT))
        for logger in (self.log, logging.getLogger("tornado")):
            logger.handlers[:] = [handler]
            logger.propagate = False
            logger.setLevel(logging.ERROR)

    @staticmethod
    def _adopt(session: dict[str, Any]) -> None:
        """With its first pipes an unused kernel is told whose it is."""
        adopt(session)
        _default_backend()

    @staticmethod
    def _show_workspace(hidden: list[str]) -> None:
        """Only now may imports find files of the workspace."""
        _default_backend()
        hide(hidden)
        sys.path.insert(0, "")

    @staticmethod
    def _patch_create_task(loop: Any) -> None:
        """`asyncio.create_task` in a synchronous cell makes a task of the kernel's loop."""
        stock = asyncio.create_task

        def create_task(coro: Any, **options: Any) -> Any:
            if not compat.a_loop_runs() and loop.is_running():
                given = {name: value for name, value in options.items() if value is not None}
                return loop.create_task(coro, **given)
            return stock(coro, **options)

        asyncio.create_task = asyncio.tasks.create_task = create_task


def _default_backend() -> None:
    if not os.environ.get("MPLBACKEND"):
        os.environ["MPLBACKEND"] = BACKEND


def _config() -> Any:
    config = Config()
    config.HistoryManager.enabled = False
    config.HistoryManager.hist_file = ":memory:"
    config.IPCompleter.use_jedi = False
    config.InteractiveShell.banner1 = ""
    config.InteractiveShell.colors = "NoColor"
    config.IPKernelApp.connection_file = ""
    return config
