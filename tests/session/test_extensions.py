"""extensions.md rules 1-13 in real kernels: setup code, its names and failures, descriptions."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from replsvc.config import Config
from replsvc.coordinator import Coordinator
from replsvc.errors import ExtensionError, ExtensionSetupError
from replsvc.extension.contract import Extension, Secret
from replsvc.extension.quote import quote
from replsvc.session import Session


def weather_body(api_key: str, limit: int = 3) -> None:
    _calls = []

    def fetch(path: str) -> str:
        """Pretend to fetch."""
        _calls.append(path)
        return f"{api_key}/{path}/{len(_calls)}/{limit}"

    def fail() -> None:
        raise RuntimeError("from the extension")


class Weather:
    seen: list[object]

    def __init__(self) -> None:
        self.seen = []

    def code(self, opts):  # type: ignore[no-untyped-def]
        self.seen.append(("code", dict(opts)))
        return quote(weather_body, api_key=opts.get("api_key", "none"))

    def description(self, opts):  # type: ignore[no-untyped-def]
        self.seen.append(("description", dict(opts)))
        return "- `fetch(path)`: fetches"


ping = Extension(
    code="def ping():\n    return 'pong'", description="- `ping()` returns 'pong'", name="ping"
)


async def test_inline_and_module_based_extensions_run_before_user_code(
    coordinator: Coordinator,
) -> None:
    async with coordinator.session(extensions=[ping, (Weather(), {"api_key": "k"})]) as session:
        assert (await session.run("ping(), fetch('now')")).text == "=> ('pong', 'k/now/1/3')"
        assert (await session.run("fetch.__doc__")).text == "=> 'Pretend to fetch.'"
        info = await session.info()
        assert [e.names for e in info.extensions] == [("ping",), ("fail", "fetch")]


async def test_code_and_description_are_called_once_with_the_same_opts(
    coordinator: Coordinator,
) -> None:
    weather = Weather()
    async with coordinator.session(extensions=[(weather, {"api_key": "k"})]) as session:
        for _ in range(3):
            await session.run("1")
        await session.describe()
        await session.restart()
    assert weather.seen == [("code", {"api_key": "k"}), ("description", {"api_key": "k"})]


async def test_setup_runs_before_capture_and_outside_history(coordinator: Coordinator) -> None:
    noisy = Extension(code="print('setting up')\nimport os; os.system('echo too')\n1 + 1")
    async with coordinator.session(extensions=[noisy]) as session:
        call = await session.run("print('mine'); In")
        assert call.output.text == "mine\n"
        assert "setting up" not in call.text
        assert call.execution_count == 1


async def test_private_names_stay_private_and_public_ones_reach_later_extensions(
    coordinator: Coordinator,
) -> None:
    first = Extension(code="_hidden = 1\nshown = 2", name="first")
    second = Extension(code="double = shown * 2", name="second")
    async with coordinator.session(extensions=[first, second]) as session:
        assert (await session.run("shown, double, '_hidden' in globals()")).text == (
            "=> (2, 4, False)"
        )


@pytest.mark.parametrize(
    ("second", "words"),
    [("def f(): pass", ("'f'", "first", "second")), ("tools = 1", ("tools", "second"))],
)
async def test_a_name_that_is_taken_is_an_error_naming_both(
    coordinator: Coordinator, second: str, words: tuple[str, ...]
) -> None:
    extensions = [
        Extension(code="def f(): pass", name="first"),
        Extension(code=second, name="second"),
    ]
    with pytest.raises(ExtensionSetupError) as caught:
        async with coordinator.session(extensions=extensions):
            pass
    for word in words:
        assert word.strip("'") in str(caught.value)
    assert coordinator.list() == ()


async def test_the_same_module_imported_by_two_is_no_conflict(coordinator: Coordinator) -> None:
    extensions = [Extension(code="import json\na = 1"), Extension(code="import json\nb = json")]
    async with coordinator.session(extensions=extensions) as session:
        assert (await session.run("b is json")).text == "=> True"


async def test_setup_runs_again_after_every_kernel_restart(coordinator: Coordinator) -> None:
    async with coordinator.session(extensions=[ping]) as session:
        await session.run("ping = None")
        await session.restart()
        assert (await session.run("ping()")).text == "=> 'pong'"
        await session.run("import os; os._exit(1)")
        assert (await session.run("ping()")).text == "=> 'pong'"


async def test_with_lifetime_call_setup_runs_in_each_kernel(coordinator: Coordinator) -> None:
    async with coordinator.session(extensions=[ping], lifetime="call") as session:
        for _ in range(2):
            assert (await session.run("p, ping = ping(), None; p")).text == "=> 'pong'"


async def test_a_failing_setup_names_extension_file_and_line(coordinator: Coordinator) -> None:
    def body() -> None:
        print("so far")
        deep = {}
        deep["missing"]

    with pytest.raises(ExtensionSetupError) as caught:
        async with coordinator.session(extensions=[ping, _quoted("broken", body)]):
            pass
    line = body.__code__.co_firstlineno + 3
    assert caught.value.extension == "broken"
    assert f'"{__file__}", line {line}' in caught.value.traceback
    assert 'deep["missing"]' in caught.value.traceback
    assert "KeyError: 'missing'" in caught.value.traceback
    assert "replsvc_kernels" not in caught.value.traceback
    assert caught.value.output == "so far\n"
    assert coordinator.list() == ()


def _quoted(name: str, body: object) -> Extension:
    return Extension(code=quote(body), name=name)  # type: ignore[arg-type]


async def test_inline_code_is_shown_with_its_own_source(coordinator: Coordinator) -> None:
    broken = Extension(code="x = 1\n\n1 / 0  # here", name="broken")
    with pytest.raises(ExtensionSetupError) as caught:
        async with coordinator.session(extensions=[broken]):
            pass
    assert "line 3" in caught.value.traceback
    assert "1 / 0  # here" in caught.value.traceback


@pytest.mark.parametrize(
    "code",
    [
        "import sys; sys.exit(3)",
        "import os; os._exit(3)",
        "import os; os.kill(os.getpid(), 9)",
        "raise KeyboardInterrupt",
        "def f(:\n  pass",
    ],
)
async def test_setup_that_ends_its_kernel_is_that_extensions_failure(
    coordinator: Coordinator, code: str
) -> None:
    with pytest.raises(ExtensionSetupError) as caught:
        async with coordinator.session(extensions=[Extension(code=code, name="suicidal")]):
            pass
    assert caught.value.extension == "suicidal"
    assert "suicidal" in str(caught.value)


async def test_setup_has_a_deadline_of_its_own_and_says_where_it_was(
    coordinator: Coordinator,
) -> None:
    def body() -> None:
        import time

        print("waiting")
        time.sleep(1000)

    with pytest.raises(ExtensionSetupError, match=r"slow.*0\.3 s") as caught:
        async with coordinator.session(
            extensions=[_quoted("slow", body)], limits={"setup_timeout_s": 0.3}
        ):
            pass
    line = body.__code__.co_firstlineno + 4
    assert f'"{__file__}", line {line}' in caught.value.traceback
    assert caught.value.output == "waiting\n"


async def test_setup_that_does_not_listen_at_its_deadline_is_killed_and_what_it_printed_kept(
    coordinator: Coordinator,
) -> None:
    code = (
        "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "print('deaf', flush=True)\nwhile True: pass"
    )
    with pytest.raises(ExtensionSetupError, match=r"deaf.*0\.3 s") as caught:
        async with coordinator.session(
            extensions=[Extension(code=code, name="deaf")],
            limits={"setup_timeout_s": 0.3, "interrupt_grace_s": 0.1},
        ):
            pass
    assert caught.value.output == "deaf\n"
    assert coordinator.list() == ()


async def test_secrets_are_redacted_in_setup_errors_and_in_the_setup_log(
    coordinator: Coordinator,
) -> None:
    def talks(key: str, fail: bool) -> None:
        print("the key is", key)
        if fail:
            raise ValueError(key)

    secret = Secret("s3cr3t-é-key")
    with pytest.raises(ExtensionSetupError) as caught:
        async with coordinator.session(
            extensions=[Extension(code=quote(talks, key=secret, fail=True))]
        ):
            pass
    assert "s3cr3t" not in repr((str(caught.value), caught.value.details))
    assert "[redacted]" in caught.value.message
    assert caught.value.output == "the key is [redacted]\n"
    assert caught.value.traceback.endswith("ValueError: [redacted]")
    quiet = Extension(code=quote(talks, key=secret, fail=False))
    async with coordinator.session(extensions=[quiet]) as session:
        await session.run("1")
        (setup,) = (await session.log.read(session.id, kinds=["kernel_started"]))[0].data["setup"]
        assert setup["output"] == "the key is [redacted]\n"


async def test_what_setup_prints_is_in_the_sessions_log_for_who_debugs_it(
    coordinator: Coordinator,
) -> None:
    noisy = Extension(code="print('setting up')\nimport os; os.system('echo too')", name="noisy")
    async with coordinator.session(extensions=[ping, noisy]) as session:
        await session.restart()
        started = await session.log.read(session.id, kinds=["kernel_started"])
        assert [event.data["generation"] for event in started] == [1, 2]
        for event in started:
            assert [one["extension"] for one in event.data["setup"]] == ["ping", "noisy"]
            assert [one["output"] for one in event.data["setup"]] == ["", "setting up\ntoo\n"]
            assert event.data["setup"][0]["names"] == ["ping"]


@pytest.mark.parametrize("isolation", ["none"])  # an isolated session has no network to give
async def test_what_extensions_require_is_checked_with_all_other_issues_before_a_kernel_starts(
    coordinator: Coordinator,
) -> None:
    met = Extension(code="import zmq", requires=["ipykernel>=6", "pyzmq"], network=["a.example"])
    unmet = Extension(code="x = 1", name="unmet", requires=["no-such-package>=2", "ipykernel<1"])
    ours = Extension(code="x = 1", name="ours", requires=["replsvc"])
    async with coordinator.session(extensions=[met]) as session:
        assert (await session.run("zmq.__name__")).text == "=> 'zmq'"
    with pytest.raises(ExtensionError) as caught:
        async with coordinator.session(extensions=[met, unmet, 42, ours]):
            pass
    assert len(caught.value.issues) == 4
    assert "unmet" in caught.value.issues[0]
    assert "no-such-package>=2" in caught.value.issues[0]
    assert "ipykernel<1" in caught.value.issues[1]
    assert "extensions[2]" in caught.value.issues[2]
    assert "has no replsvc" in caught.value.issues[3]
    assert coordinator.list() == ()
    with pytest.raises(ExtensionError, match="kernel 'bash' has no ipykernel"):
        async with coordinator.session(kernel="bash", extensions=[met]):
            pass


async def test_a_setup_that_fails_at_restart_is_told_by_the_next_call(
    coordinator: Coordinator,
) -> None:
    code = (
        "import os\nprint('so far')\n"
        "if os.path.exists('stop'): raise RuntimeError('not twice')\nok = 1"
    )
    fragile = Extension(code=code, name="fragile")
    async with coordinator.session(extensions=[fragile]) as session:
        await session.run("open('stop', 'w').close()")
        with pytest.raises(ExtensionSetupError, match="fragile"):
            await session.restart()
        call = await session.run("ok")
        assert (call.status, call.cause and call.cause.kind) == ("killed", "setup")
        assert call.text.startswith("so far\n")
        assert "not twice" in call.text


async def test_tracebacks_from_user_code_point_into_the_extensions_file(
    coordinator: Coordinator,
) -> None:
    async with coordinator.session(extensions=[(Weather(), {})]) as session:
        call = await session.run("fail()")
        line = weather_body.__code__.co_firstlineno + 9
        assert f'"{__file__}", line {line}' in call.text
        assert 'raise RuntimeError("from the extension")' in call.text


async def test_all_problems_of_all_extensions_come_at_once(coordinator: Coordinator) -> None:
    class OnlyCode:
        @staticmethod
        def code(opts):  # type: ignore[no-untyped-def]
            return "x = 1"

    with pytest.raises(ExtensionError) as caught:
        async with coordinator.session(extensions=[OnlyCode, 42, ("no", {}), ping, object()]):
            pass
    issues = caught.value.issues
    assert len(issues) >= 4
    assert "OnlyCode" in issues[0]
    assert "description" in issues[0]
    assert "[1]" in issues[1]
    assert coordinator.list() == ()


HOSTILE = 'a"""+__import__("os").system("touch pwned")+"""\n{b}\'\\{{\n%s'


async def test_hostile_texts_stay_data(coordinator: Coordinator) -> None:
    class Hostile:
        @staticmethod
        def code(opts):  # type: ignore[no-untyped-def]
            def body(text):  # type: ignore[no-untyped-def]
                crossed = text  # noqa: F841 - a name of the kernel

            return quote(body, text=opts["text"])

        @staticmethod
        def description(opts):  # type: ignore[no-untyped-def]
            return opts["text"]

    async with coordinator.session(extensions=[(Hostile, {"text": HOSTILE})]) as session:
        call = await session.run("crossed")
        assert call.result == {"text/plain": repr(HOSTILE)}
        assert (await session.run("import os; os.listdir('.')")).text == "=> []"
        assert HOSTILE.strip() in await session.describe()


async def test_secrets_are_redacted_wherever_they_could_show(coordinator: Coordinator) -> None:
    secret = "s3cr3t-é-key"
    extension = (Weather(), {"api_key": Secret(secret)})
    async with coordinator.session(extensions=[extension]) as session:
        call = await session.run(
            "import sys, time\nprint(fetch('x'))\nk = fetch('').split('/')[0]\n"
            "sys.stdout.write(k[:5]); sys.stdout.flush(); time.sleep(0.02); print(k[5:])\n"
            "from IPython.display import display; display({'k': k})\nlen(k), k"
        )
        failed = await session.run("raise ValueError(k)")
        events = await session.log.read(session.id)
        everything = repr((call, failed, events, await session.info()))
        assert secret not in everything
        assert secret.encode() not in b"".join(event.blob or b"" for event in events)
        assert "[redacted]" in call.output.text
        assert "[redacted]" in failed.text
        assert f"({len(secret)}, " in call.text


async def test_the_description_is_the_base_then_each_fragment_in_order(
    coordinator: Coordinator,
) -> None:
    extensions = [ping, Extension(description=""), Extension(description="Second.")]
    async with coordinator.session(extensions=extensions) as session:
        text = await session.describe()
        assert text.endswith("\n\n- `ping()` returns 'pong'\n\nSecond.")
        assert "120 s" in text
        assert "50,000 bytes" in text
        assert (await session.info()).description == text
        assert (await session.tools())[0].description == text
    async with coordinator.session(limits={"timeout_s": 7}, lifetime="call") as session:
        text = await session.describe()
        assert "7 s" in text
        assert "120" not in text


async def test_packages_in_the_description_are_really_importable(session: Session) -> None:
    found = re.search(r"Importable: (.*?)(?: and \d+ more)?\.\n", await session.describe())
    assert found is not None
    names = [item.split(" ")[0] for item in found.group(1).split(", ")]
    assert names
    code = (
        "import importlib.metadata, importlib.util\nmodules = {}\n"
        "for module, dists in importlib.metadata.packages_distributions().items():\n"
        "    for dist in dists: modules.setdefault(dist, []).append(module)\n"
        f"[name for name in {names!r}\n"
        " if not any(map(importlib.util.find_spec, modules.get(name, ())))]"
    )
    assert (await session.run(code)).text == "=> []"


async def test_a_path_is_code_with_its_own_file_and_line(
    coordinator: Coordinator, tmp_path: Path
) -> None:
    file = tmp_path / "setup_code.py"
    file.write_text("# coding: utf-8\nname = 'ü'\n\ndef broken():\n    return [][0]\n")
    async with coordinator.session(extensions=[Extension(code=file)]) as session:
        call = await session.run("name, broken()")
        assert f'"{file}", line 5' in call.text


async def test_configured_extensions_are_the_default_and_can_be_chosen_by_name(
    make_config,
    tmp_path: Path,  # type: ignore[no-untyped-def]
) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "from replsvc import Extension\n"
        "one = Extension(name='one', code='a = 1')\n"
        "class two:\n"
        "    @staticmethod\n"
        "    def code(opts): return f\"b = {opts['n']!r}\"\n"
        "    @staticmethod\n"
        "    def description(opts): return 'b is there'\n"
    )
    config: Config = make_config().model_copy(
        update={"extensions": (f"{file}:one", f'{file}:two={{"n": 5}}')}
    )
    async with Coordinator(config) as coordinator:
        async with coordinator.session() as session:
            assert (await session.run("a, b")).text == "=> (1, 5)"
        async with coordinator.session(extensions=[]) as session:
            assert (await session.run("'a' in globals()")).text == "=> False"
        chosen = ({"name": "two", "opts": {"n": 6}}, {"code": "c = 7"})
        request = {"extensions": chosen}
        from replsvc.session_values import SessionRequest

        session = await coordinator.open(SessionRequest.model_validate(request))
        assert (await session.run("b, c, 'a' in globals()")).text == "=> (6, 7, False)"
        with pytest.raises(ExtensionError, match="three"):
            await coordinator.open(SessionRequest(extensions=({"name": "three"},)))
