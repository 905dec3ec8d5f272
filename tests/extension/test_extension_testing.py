"""extensions.md rule 51: authors' tests open sessions with their extensions, quickly."""

from __future__ import annotations

import threading

import pytest
import trio

from patience import promptly
from replsvc import (
    Config,
    Extension,
    ExtensionDisposeError,
    ExtensionError,
    ExtensionSetupError,
    InvalidInputError,
    ToolContext,
    tool,
)
from replsvc.testing import Sessions
from replsvc_kernels.messages import ExecuteResult
from replsvc_kernels.testing import CallTool, Fail, Hang, Names


@tool
def add(a: int, b: int = 1) -> int:
    """Adds two numbers."""
    return a + b


sums = Extension(name="sums", tools=[add], code="one = 1", description="Sums are added.")


@pytest.fixture(scope="module")
def extension_session():
    with Sessions(Config(isolation="none")) as sessions:
        # What they run on is made now: each test is watched for what it leaves behind.
        with sessions(kernel={}), sessions():
            pass
        yield sessions


def test_a_plain_test_calls_tools_beside_a_fake_kernel(extension_session):
    with extension_session(sums, kernel={}, name="Ada") as session:
        call = session.call("add", {"a": 2})
        assert (call.status, call.text) == ("ok", "3")
        assert session.call("add", {"a": "two"}).status == "error"
        assert session.do(lambda real: real.info()).name == "Ada"
        assert [one.name for one in session.tools()] == ["repl", "add"]
        kinds = [event.kind for event in session.events()]
        assert kinds.count("call_finished") == 2


def test_a_fake_kernel_follows_the_script_and_tells_what_it_was_asked(extension_session):
    script = {
        "ask": [CallTool("add", {"a": 1}, then=lambda sum_: [ExecuteResult({"text/plain": sum_})])],
        "1/0": [Fail("ZeroDivisionError", "division by zero")],
    }
    with extension_session(sums, kernel=script, setup={"sums": [Names(("one",))]}) as session:
        assert session.run("ask").status == "ok"
        assert session.run("1/0").error.ename == "ZeroDivisionError"
        assert [one.code for one in session.kernel.executed] == ["ask", "1/0"]
        assert [one.name for one in session.kernel.setups] == ["sums"]
        session.restart()
        assert session.kernel.executed == []


def test_without_a_script_the_kernel_is_real(extension_session):
    with extension_session(sums) as session:
        assert session.run("tools.add(a=one)").text == "=> 2"
        assert "Sums are added." in session.describe()
        with pytest.raises(LookupError, match="no fake kernel"):
            session.kernel  # noqa: B018 - looking is the test


async def test_an_async_test_has_the_same(extension_session):
    async with extension_session(sums, kernel={"hang": [Hang()]}) as session:
        assert (await session.call("add", {"a": 2})).text == "3"
        assert [one.name for one in await session.tools()] == ["repl", "add"]
        with trio.move_on_after(0.01) as scope:
            await session.run("hang")
        assert scope.cancelled_caught
        # cancelled over there, too: the kernel is free
        assert "interrupt" in session.kernel.signals
        with promptly():
            await session.restart()
        kinds = [event.kind for event in await session.events()]
        assert "session_changed" in kinds
        assert (await session.do(lambda real: real.info())).generation == 2
        assert "Sums are added." in await session.describe()


async def test_cancelled_while_it_opens_nothing_stays_open(extension_session):
    async def slow(ctx):
        await trio.sleep_forever()

    stuck = Extension(name="stuck", setup=slow)
    with trio.move_on_after(0.01) as scope:
        async with extension_session(stuck, kernel={}):
            raise AssertionError
    assert scope.cancelled_caught
    async with extension_session(kernel={}) as session:
        assert await session.do(_count, extension_session) == 1


async def _count(_session, sessions):
    return len(sessions._fake.coordinator.list())


def test_all_sessions_share_a_thread_and_each_has_its_own_resources(extension_session):
    seen = []

    @tool
    async def where(ctx: ToolContext) -> int:
        """Says where it runs."""
        ctx.resource.append(1)
        seen.append(threading.get_ident())
        return len(ctx.resource)

    kept = Extension(name="kept", tools=[where], setup=lambda ctx: [])
    for _ in range(2):
        with extension_session(kept, kernel={}) as session:
            assert session.call("where").text == "1"
    assert len(set(seen)) == 1
    assert seen[0] != threading.get_ident()


def test_what_is_wrong_with_an_extension_is_raised_in_the_test(extension_session):
    with (
        pytest.raises(ExtensionError, match="'sums'"),
        extension_session(sums, Extension(name="sums", code=""), kernel={}),
    ):
        raise AssertionError
    broken = {"sums": [Fail("KeyError", "'one'")]}
    with (
        pytest.raises(ExtensionSetupError, match="'sums': its setup code raised KeyError"),
        extension_session(sums, kernel={}, setup=broken),
    ):
        raise AssertionError
    assert extension_session._fake_kernels.of == {}


def test_what_can_not_be_disposed_of_is_raised_unless_the_test_failed_before(extension_session):
    careless = Extension(name="careless", setup=lambda ctx: {}, dispose=lambda it: it["missing"])
    with pytest.raises(ExtensionDisposeError), extension_session(careless, kernel={}):
        pass
    with pytest.raises(ZeroDivisionError), extension_session(careless, kernel={}):
        1 / 0  # noqa: B018


def test_wrong_fields_are_refused_before_anything_starts():
    with Sessions(Config(isolation="none")) as sessions:
        with pytest.raises(InvalidInputError, match="lifetime"):
            sessions(kernel={}, lifetime="moon")
        with pytest.raises(InvalidInputError, match="fake kernel"):
            sessions(sums, setup={})
        assert (sessions._real, sessions._fake) == (None, None)


async def test_a_plain_with_in_an_async_test_says_what_to_write(extension_session):
    with (
        pytest.raises(RuntimeError, match="async with"),
        extension_session(sums, kernel={}),
    ):
        raise AssertionError


def test_settings_that_can_not_be_used_are_raised_in_the_test(tmp_path):
    (tmp_path / "file").write_text("")
    config = Config(isolation="none", extensions=("nothing_that_is_there",))
    with (
        Sessions(config) as sessions,
        pytest.raises(ExtensionError, match="nothing_that_is_there"),
        sessions(kernel={}),
    ):
        raise AssertionError


def test_the_fixture_works_as_it_is_imported_with_and_without_pytest_trio(pytester, monkeypatch):
    monkeypatch.setenv("REPLSVC_ISOLATION", "none")
    pytester.makeconftest("from replsvc.testing import extension_session")
    pytester.makepyfile(
        """
        from replsvc import Extension

        def test_sync(extension_session):
            with extension_session(Extension(code="x = 41")) as session:
                assert session.run("x + 1").text == "=> 42"

        async def test_async(extension_session):
            async with extension_session(Extension(description="Hi."), kernel={}) as session:
                assert "Hi." in await session.describe()
        """
    )
    pytester.makeini("[pytest]\ntrio_mode = true\nfilterwarnings = error\n")
    pytester.runpytest_subprocess().assert_outcomes(passed=2)
    pytester.makeini("")
    only_sync = pytester.runpytest_subprocess("-p", "no:trio", "-k", "sync and not async")
    only_sync.assert_outcomes(passed=1, deselected=1)
