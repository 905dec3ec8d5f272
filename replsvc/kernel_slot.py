"""A session's kernel over time: started, set up, handed out, replaced when it ends.

`KernelSlot.run` is one task that owns the kernel's context, so that a kernel's lifetime is a
lexical scope even though sessions outlive kernels. Everybody else asks for what they need through
events.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import trio

from replsvc.errors import (
    BackendUnavailableError,
    ExtensionSetupError,
    ReplsvcError,
    SessionClosedError,
    StartupFailedError,
    StartupTimeoutError,
)
from replsvc.lasting import Adopted
from replsvc.redaction import Redactor
from replsvc_kernels.backends.base import Backend
from replsvc_kernels.background import background_nursery
from replsvc_kernels.kernel import (
    Kernel,
    KernelDied,
    LaunchError,
    LaunchSpec,
    LaunchTimeout,
    ProtocolViolation,
)
from replsvc_kernels.messages import Exit, Failure, SetupCode, SetupReport


@dataclass(frozen=True, slots=True)
class KernelPlan:
    """All that starting a kernel takes; the same for every kernel of a session."""

    backend: Backend
    spec: LaunchSpec
    setup: tuple[SetupCode, ...] = ()
    setup_timeout_s: float | None = None
    grace_s: float = 2.0
    adopted: Adopted | None = None
    """The first kernel is one that was left, if one was."""
    """What setup code that is late gets after an interrupt, before it is killed."""


@dataclass(frozen=True, slots=True)
class Started:
    """A kernel that is ready, and what its setup code did."""

    kernel: Kernel
    generation: int
    reports: tuple[SetupReport, ...]
    adopted: bool = False


def text_of(data: bytes) -> str:
    """What setup code printed, bytes that are no UTF-8 escaped."""
    return data.decode("utf-8", "backslashreplace")


def _check_guest(kernel: Kernel, plan: KernelPlan) -> None:
    """Raise `BackendUnavailableError` for setup code that nobody in this kernel could run."""
    if plan.setup and not kernel.info.has_guest:
        raise BackendUnavailableError(
            f"{plan.spec.python or 'the kernel'} runs ipykernel's own application, because of its "
            f"version of ipykernel: setup code of {', '.join(code.name for code in plan.setup)} "
            "can't run in it.",
            hint="`replsvc doctor` says which versions it takes; or leave the extensions out.",
        )


async def set_up(kernel: Kernel, plan: KernelPlan, redactor: Redactor) -> tuple[SetupReport, ...]:
    """Run each extension's setup code, in order; raises `ExtensionSetupError` for the first
    failure.

    Code that exits, kills its kernel or exceeds its own deadline is that extension's failure too.
    """
    return tuple([await _set_up_one(kernel, code, plan, redactor) for code in plan.setup])


async def _set_up_one(
    kernel: Kernel, code: SetupCode, plan: KernelPlan, redactor: Redactor
) -> SetupReport:
    def failed(
        what: str, *, failure: Failure | None = None, output: bytes = b"", hint: str = ""
    ) -> ExtensionSetupError:
        return ExtensionSetupError(
            redactor.text(f"extension {code.name!r}: its setup code {what}"),
            extension=code.name,
            traceback=redactor.text("\n".join(failure.traceback)) if failure is not None else "",
            output=redactor.text(text_of(output)),
            hint=hint,
        )

    ended = await _by_deadline(kernel, code, plan)
    died = ended.end if isinstance(ended.end, KernelDied) else None
    report = ended.end if isinstance(ended.end, SetupReport) else None
    if ended.late:
        raise failed(
            f"did not end within {plan.setup_timeout_s:g} s",
            failure=report.failure if report is not None else None,
            output=report.output if report is not None else died.printed if died else b"",
            hint="Make it faster, or raise setup_timeout_s.",
        )
    if report is None:
        assert died is not None
        raise failed(
            f"ended the kernel ({died.exit})",
            output=died.printed,
            hint="Setup code must not exit or kill its process.",
        )
    if (failure := report.failure) is not None:
        raise failed(
            f"raised {failure.ename}: {failure.evalue}".rstrip(": "),
            failure=failure,
            output=report.output,
        )
    return report


@dataclass(frozen=True, slots=True)
class _SetupEnd:
    """What setup code came to, and whether its deadline had passed."""

    end: SetupReport | KernelDied
    late: bool


async def _by_deadline(kernel: Kernel, code: SetupCode, plan: KernelPlan) -> _SetupEnd:
    """Run setup code. Late, it is interrupted, so that it says where it was; then killed."""
    end: SetupReport | KernelDied | None = None
    late = False

    async def watch() -> None:
        nonlocal late
        assert plan.setup_timeout_s is not None
        await trio.sleep(plan.setup_timeout_s)
        late = True
        with trio.move_on_after(plan.grace_s):
            await kernel.interrupt()
            await trio.sleep_forever()
        await kernel.kill()

    async with background_nursery() as nursery:
        if plan.setup_timeout_s is not None:
            nursery.start_soon(watch)
        try:
            end = await kernel.setup(code)
        except KernelDied as died:
            end = died
    return _SetupEnd(end, late)


class KernelSlot:
    """See the module. `on_started` is told of every start, `on_died` of every unplanned end."""

    def __init__(
        self,
        plan: KernelPlan,
        redactor: Redactor,
        *,
        on_started: Callable[[Started], None],
        on_died: Callable[[Started, Exit], None],
    ) -> None:
        self._plan, self._redactor = plan, redactor
        self._on_started, self._on_died = on_started, on_died
        self.generation = 0
        self._adopted = plan.adopted
        self._resumed = trio.Event()
        self._resumed.set()
        self._current: Started | None = None
        self._failure: ReplsvcError | None = None
        self._wanted = trio.Event()
        self._settled = trio.Event()
        self._leave = trio.Event()
        self._left = trio.Event()
        self._left.set()
        self._stopped = False
        self._holds = 0
        self._unheld = trio.Event()

    @property
    def current(self) -> Started | None:
        """The kernel that is ready now, if one is."""
        return self._current

    async def run(self) -> None:
        """Keep the slot until cancelled; the kernel ends with it."""
        try:
            while True:
                await self._wanted.wait()
                while self._holds:
                    await self._unheld.wait()
                self._wanted = trio.Event()
                if self._current is None:
                    await self._one_kernel()
        finally:
            self._stopped = True
            self._settled.set()

    async def _one_kernel(self) -> None:
        self._leave, self._left = trio.Event(), trio.Event()
        self._failure = None
        try:
            adopted, self._adopted = self._adopted, None
            backend = self._plan.backend if adopted is None else adopted.backend
            async with backend.open(self._plan.spec) as kernel:
                _check_guest(kernel, self._plan)
                if adopted is None:
                    reports = await set_up(kernel, self._plan, self._redactor)
                    self.generation += 1
                else:
                    reports, self.generation = adopted.reports, adopted.generation
                    self._resumed = adopted.resumed
                self._current = Started(kernel, self.generation, reports, adopted is not None)
                self._on_started(self._current)
                self._settle()
                started = self._current
                died = await self._until_over(kernel)
                self._current = None
                if died is not None:
                    if not self._holds:  # else somebody has ended it on purpose
                        self._on_died(started, died)
                    # The next call should not have to wait for what can be done now.
                    self._wanted.set()
        except ReplsvcError as error:
            self._failure = error
        except LaunchTimeout as error:
            self._failure = StartupTimeoutError(
                f"{error}; it has been ended and nothing of it is left.",
                hint="Raise startup_timeout_s, or look at what the environment does at start.",
            )
        except LaunchError as error:
            self._failure = BackendUnavailableError(str(error))
        except (KernelDied, ProtocolViolation) as error:
            self._failure = StartupFailedError(f"the kernel can't be started: {error}")
        finally:
            self._current = None
            self._left.set()
            self._settle()

    def _settle(self) -> None:
        self._settled.set()
        self._settled = trio.Event()

    async def _until_over(self, kernel: Kernel) -> Exit | None:
        """Wait for the kernel's end (its exit) or for being asked to let it go (None)."""
        died: Exit | None = None
        async with trio.open_nursery() as nursery:

            async def watch() -> None:
                nonlocal died
                await self._resumed.wait()
                died = await kernel.wait_exited()
                nursery.cancel_scope.cancel()

            async def asked() -> None:
                await self._leave.wait()
                nursery.cancel_scope.cancel()

            nursery.start_soon(watch)
            nursery.start_soon(asked)
        return None if self._leave.is_set() else died

    async def acquire(self) -> Started:
        """The kernel, started if need be. Raises what prevented it; the next one tries anew."""
        # A kernel that has ended is not handed out, even before its end was noticed here.
        # Unless it is for the cell that ran on it: what that wrote is there to be read.
        while self._current is None or (
            self._current.kernel.exit is not None and self._resumed.is_set()
        ):
            if self._stopped:
                raise SessionClosedError("the session has ended", hint="Open another.")
            settled = self._settled
            self._wanted.set()
            await settled.wait()
            if (failure := self._failure) is not None:
                self._failure = None
                raise failure
        await trio.lowlevel.checkpoint_if_cancelled()
        return self._current

    async def release(self) -> None:
        """End the kernel and wait until nothing of it is left; `acquire` starts another."""
        if self._current is None:
            return
        left = self._left
        self._leave.set()
        await left.wait()

    @contextmanager
    def held(self) -> Iterator[None]:
        """While the body runs no kernel is started; those who want one wait."""
        self._holds += 1
        try:
            yield
        finally:
            self._holds -= 1
            if not self._holds:
                unheld, self._unheld = self._unheld, trio.Event()
                unheld.set()

    async def empty(self) -> None:
        """End the kernel, also one that is just starting; for use while the slot is `held`."""
        while not self._left.is_set():
            if self._current is None:
                await self._settled.wait()
            else:
                await self.release()

    def replace(self) -> None:
        """Let the kernel go and start another in the background; nobody gets this one again."""
        self._current = None
        self._leave.set()
        self._wanted.set()


def setup_of(extensions: Sequence[object]) -> tuple[SetupCode, ...]:
    """The setup code of resolved extensions, in their order."""
    return tuple(
        code for extension in extensions if (code := getattr(extension, "setup", None)) is not None
    )
