"""extensions.md rules 22-26: resources and services of a session's extensions."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from replsvc.config import Config, Limits
from replsvc.coordinator import Coordinator
from replsvc.errors import ExtensionDisposeError, ExtensionSetupError
from replsvc.extension.contract import Extension, SetupContext, ToolContext, tool
from replsvc.session_values import SessionRequest


@pytest.fixture
async def coordinator() -> AsyncIterator[Coordinator]:
    """Nothing here looks into a kernel, so they need no isolation."""
    async with Coordinator(Config(isolation="none")) as coordinator:
        yield coordinator


class Log(list[str]):
    """What happened, and extensions that write it."""

    def extension(self, name: str, *dependencies: object, **fields: Any) -> Extension:
        def setup(ctx: SetupContext) -> str:
            self.append(f"+{name}")
            return name

        def dispose(resource: str) -> None:
            self.append(f"-{resource}")

        given = {"setup": setup, "dispose": dispose, "dependencies": dependencies, **fields}
        return Extension(name=name, **given)


def raises(*_: object) -> None:
    raise ValueError("broken")


async def test_resources_are_made_in_order_and_disposed_in_reverse(
    coordinator: Coordinator,
) -> None:
    log = Log()
    top = log.extension("top", log.extension("base"))
    async with coordinator.session(extensions=[top, log.extension("last")]) as session:
        assert log == ["+base", "+top", "+last"]
        await session.run("1")
        await session.restart()
    assert log == ["+base", "+top", "+last", "-last", "-top", "-base"]


async def _asynchronous(ctx: SetupContext) -> list[str]:
    await trio.lowlevel.checkpoint()
    return []


async def _generator(ctx: SetupContext) -> AsyncIterator[list[str]]:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.sleep_forever)
        yield []
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    "setup", [lambda ctx: [], _asynchronous, _generator, asynccontextmanager(_generator)]
)
async def test_a_tool_finds_the_resource_of_its_extension_in_any_form(
    coordinator: Coordinator, setup: Callable[..., Any]
) -> None:
    async def save(text: str, ctx: ToolContext[list[str]]) -> str:
        ctx.resource.append(text)
        if text == "fail":
            raise ValueError
        return f"{len(ctx.resource)} saved"

    saves = tool(name="save", description="Saves.", handler=save)
    notes = Extension(name="notes", tools=[saves], setup=setup, dispose=list.clear)
    async with (
        coordinator.session(extensions=[notes]) as session,
        coordinator.session(extensions=[notes]) as other,
    ):
        assert (await session.call("save", {"text": "a"})).text == "1 saved"
        # It outlives a failed call, and the next one has it from code too.
        assert (await session.call("save", {"text": "fail"})).status == "error"
        assert (await session.run("tools.save(text='b')")).text == "=> '3 saved'"
        assert (await other.call("save", {"text": "a"})).text == "1 saved"


async def test_a_setup_that_fails_is_told_and_the_others_are_disposed(
    coordinator: Coordinator,
) -> None:
    log = Log()
    fails = log.extension("fails", setup=raises)
    listed = [log.extension("a"), log.extension("b"), fails, log.extension("c")]
    with pytest.raises(ExtensionSetupError, match="'fails': its setup raised ValueError: broken"):
        async with coordinator.session(extensions=listed):
            raise AssertionError
    assert log == ["+a", "+b", "-b", "-a"]
    assert coordinator.list() == ()


@pytest.mark.parametrize("error", [SystemExit("s"), KeyboardInterrupt("s"), StopIteration("s")])
async def test_whatever_a_setup_raises_is_its_sessions_error(
    coordinator: Coordinator, error: BaseException
) -> None:
    def setup(ctx: SetupContext) -> None:
        raise error

    async def later(ctx: SetupContext) -> AsyncIterator[None]:
        raise error
        yield

    for one in (setup, later) if not isinstance(error, StopIteration) else (setup,):
        with pytest.raises(ExtensionSetupError) as caught:
            async with coordinator.session(extensions=[Extension(name="x", setup=one)]):
                raise AssertionError
        assert caught.value.__cause__ is error
    async with coordinator.session() as session:
        assert (await session.run("1")).text == "=> 1"


async def test_what_a_setup_acquired_before_it_failed_is_released(
    coordinator: Coordinator,
) -> None:
    log = []

    async def setup(ctx: SetupContext) -> AsyncIterator[None]:
        try:
            log.append("first step")
            raises()
            yield
        finally:
            log.append("released")

    with pytest.raises(ExtensionSetupError):
        async with coordinator.session(extensions=[Extension(name="x", setup=setup)]):
            raise AssertionError
    assert log == ["first step", "released"]


async def hangs(_: object) -> None:
    await trio.sleep_forever()


async def test_a_setup_or_disposal_that_hangs_is_ended() -> None:
    log = Log()
    config = Config(isolation="none", limits=Limits(setup_timeout_s=1))
    async with Coordinator(config) as coordinator:
        listed = [log.extension("a"), log.extension("hangs", setup=hangs)]
        with pytest.raises(ExtensionSetupError, match="its setup did not end within 1 s"):
            async with coordinator.session(extensions=listed):
                raise AssertionError
        assert log == ["+a", "-a"]
        listed[1] = log.extension("b", dispose=hangs)
        with pytest.raises(ExtensionDisposeError, match="its resource did not end within 1 s"):
            async with coordinator.session(extensions=listed):
                pass
    assert log[2:] == ["+a", "+b", "-a"]


async def test_all_are_disposed_and_the_first_failure_is_raised_on_a_clean_close(
    coordinator: Coordinator,
) -> None:
    log = Log()

    def fails(name: str) -> None:
        log.append(f"-{name}")
        raise ValueError(name)

    listed = [log.extension("a"), *(log.extension(n, dispose=fails) for n in "bc")]
    with pytest.raises(ExtensionDisposeError, match="'c': disposing its resource raised") as caught:
        async with coordinator.session(extensions=listed):
            pass
    assert isinstance(caught.value.__cause__, ValueError)
    assert log == ["+a", "+b", "+c", "-c", "-b", "-a"]
    with pytest.raises(ZeroDivisionError):
        async with coordinator.session(extensions=listed):
            raise ZeroDivisionError
    assert log[-3:] == ["-c", "-b", "-a"]
    session = await coordinator.open(SessionRequest(), extensions=listed)
    with pytest.raises(ExtensionDisposeError):
        await coordinator.close(session.id)


async def test_resources_are_disposed_when_the_session_is_cancelled_or_the_service_stops() -> None:
    log = Log()
    async with Coordinator(Config(isolation="none")) as coordinator:
        with trio.CancelScope() as scope:
            async with coordinator.session(extensions=[log.extension("a")]):
                scope.cancel()
                await trio.sleep_forever()
        assert log == ["+a", "-a"]
        await coordinator.open(SessionRequest(), extensions=[log.extension("b")])
    assert log[2:] == ["+b", "-b"]


async def test_a_kernel_that_can_not_start_leaves_no_resource(coordinator: Coordinator) -> None:
    log = Log()
    broken = Extension(name="broken", code="1 / 0")
    with pytest.raises(ExtensionSetupError):
        async with coordinator.session(extensions=[log.extension("a"), broken]):
            raise AssertionError
    assert log == ["+a", "-a"]


async def test_a_resource_that_fails_by_itself_ends_its_session_alone(
    coordinator: Coordinator,
) -> None:
    fail = trio.Event()

    async def setup(ctx: SetupContext) -> AsyncIterator[None]:
        async def run() -> None:
            await fail.wait()
            raise SystemExit

        async with trio.open_nursery() as nursery:
            nursery.start_soon(run)
            yield

    log = Log()
    session = await coordinator.open(
        SessionRequest(), extensions=[log.extension("a"), Extension(name="x", setup=setup)]
    )
    async with coordinator.session() as other:
        fail.set()
        await session.closed.wait()
        assert log == ["+a", "-a"]
        assert (await other.run("1")).text == "=> 1"


class Counter:
    """A service."""

    def __init__(self) -> None:
        self.n = 0

    def next(self) -> int:
        self.n += 1
        return self.n


counter = Extension(name="counter", setup=lambda ctx: Counter(), provides=[Counter])


def counts(ctx: ToolContext) -> int:
    return ctx.get_service(Counter).next()


def user(name: str, *dependencies: object, **fields: Any) -> Extension:
    fields = {"services": [Counter], **fields}
    counting = tool(name=name, description="d", handler=counts, **fields)
    return Extension(name=name, tools=[counting], dependencies=dependencies)


async def test_a_service_is_one_instance_a_session_for_all_who_depend_on_it(
    coordinator: Coordinator,
) -> None:
    listed = [user("one", counter), user("two", counter)]
    async with (
        coordinator.session(extensions=listed) as session,
        coordinator.session(extensions=listed) as other,
    ):
        assert (await session.call("one", {})).text == "1"
        assert (await session.call("two", {})).text == "2"
        assert (await session.run("tools.one() + tools.two()")).text == "=> 7"
        assert (await other.call("one", {})).text == "1"


async def test_a_service_that_a_tool_did_not_name_is_refused_at_once(
    coordinator: Coordinator,
) -> None:
    async with coordinator.session(extensions=[user("one", counter, services=[])]) as session:
        call = await session.call("one", {})
        assert call.error is not None
        assert call.error.ename == "LookupError"
        assert "make it with services=[Counter]" in call.error.evalue


async def test_a_setup_sees_the_services_of_direct_dependencies_only(
    coordinator: Coordinator,
) -> None:
    def setup(ctx: SetupContext) -> int:
        return ctx.get_service(Counter).next()

    near = Extension(name="near", setup=setup, dependencies=[counter])
    async with coordinator.session(extensions=[near]):
        pass
    far = Extension(name="far", setup=setup, dependencies=[near])
    with pytest.raises(ExtensionSetupError, match="has no service Counter"):
        async with coordinator.session(extensions=[far]):
            raise AssertionError


async def test_a_resource_must_be_what_its_extension_provides(coordinator: Coordinator) -> None:
    log = Log()
    wrong = log.extension("wrong", provides=[Counter, str])
    with pytest.raises(ExtensionSetupError, match="gave a str, but the extension provides Counter"):
        async with coordinator.session(extensions=[wrong]):
            raise AssertionError
    # It was acquired, and is not left behind.
    assert log == ["+wrong", "-wrong"]
