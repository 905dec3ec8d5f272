"""`tools` in the user's code: what it shows, what it refuses, and who may call."""

from __future__ import annotations

import json
from typing import Any

import pytest

FIELDS = {
    "text": {"type": "string", "description": "What to keep."},
    "tags": {"type": "array", "items": {"type": "string"}, "default": []},
    "kind": {"enum": ["a", "b"]},
    "limit": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
    "from": {"type": "number"},
}
SAVE = {
    "name": "save",
    "description": "Saves a note.",
    "parameters": {"type": "object", "properties": FIELDS, "required": ["text"]},
}
OPEN = {"name": "open", "description": "", "parameters": {}}
EVIL = '"""+__import__("os").system("x")+"""\n{x} \'\\'


@pytest.fixture
def offered(guest: Any) -> Any:
    """A guest whose cells have tools from now on."""
    offer(guest, SAVE, OPEN)
    return guest


def offer(guest: Any, *tools: Any) -> None:
    assert guest.finish(guest.start("pass", own={"tools": list(tools)})).status == "ok"


def asked(guest: Any) -> dict[str, Any]:
    """The next request of a tool."""
    while (message := guest.next_from_iopub())["msg_type"] != "tool_request":
        pass
    return message


def reply(guest: Any, request: Any, result: Any = None, **fields: Any) -> None:
    content = {"id": request["content"]["id"], "piece": json.dumps(result), **fields}
    guest.session.send(guest.control, "tool_reply", content)


def values(guest: Any, *expressions: str) -> list[str]:
    return [guest.run(expression).value for expression in expressions]


def test_tools_list_themselves(offered: Any) -> None:
    assert values(offered, "dir(tools)", "list(tools)", "len(tools)", "'save' in tools") == [
        "['open', 'save']",
        "['open', 'save']",
        "2",
        "True",
    ]
    assert values(offered, "tools") == [
        "<tools:\n  open(**arguments)\n  save(*, text: str, tags: list[str] = [], "
        "kind: Literal['a', 'b'] = ..., limit: int | None = ..., **arguments)>"
    ]


def test_a_tool_shows_its_signature_and_help(offered: Any) -> None:
    signature = (
        "(*, text: str, tags: list[str] = [], kind: Literal['a', 'b'] = ..., "
        "limit: int | None = ..., **arguments)"
    )
    offered.run("import inspect")
    for called in ("tools.save", "tools.save.call"):
        assert offered.run(f"print(inspect.signature({called}))").out.whole().decode() == (
            f"{signature}\n"
        )
    text = offered.run("help(tools.save)").out.whole().decode()
    assert "save(*, text: str, tags: list[str] = []," in text
    assert "Saves a note." in text
    assert "- text: What to keep." in text
    assert "await tools.save.call(...)" in text
    (shown,) = offered.run("tools.save?").messages[-1:]
    (page,) = shown["content"].get("payload", [{"data": shown["content"].get("data")}])
    assert "Saves a note." in page["data"]["text/plain"]
    assert values(
        offered, "tools.save.__name__, tools.save.call.__doc__ == tools.save.__doc__"
    ) == ["('save', True)"]


@pytest.mark.parametrize(
    ("call", "why"),
    [
        ("save()", "tools.save() is missing: 'text'"),
        ("save('x')", "takes its arguments by keyword: text, tags"),
        ("save(text='x', tag=1)", "unexpected keyword argument 'tag'; did you mean 'tags'?"),
        ("save(text='x', zebra=1)", "unexpected keyword argument 'zebra'; it takes: text, tags"),
        ("save(text={1, 2})", "'text' is no plain data: Object of type set is not JSON"),
        ("save(text=float('nan'))", "'text' is no plain data: Out of range float values"),
        ("save(text=b'x')", "'text' is no plain data: Object of type bytes"),
        ("save(text='\\ud800')", "'text' is no plain data: it holds half of a surrogate pair"),
        ("save(text='x', tags=cycle)", "'tags' is no plain data: Circular reference"),
        ("save(text='x', tags=deep)", "'tags' is no plain data: it is nested over 48 deep"),
        ("save(text='x', tags=deepest)", "'tags' is no plain data: it is nested too deeply"),
        ("save(text='x', tags=[0] * 200_000)", "'tags' is no plain data: it holds over 100000"),
        ("save(text='x', limit=10**4299)", "it holds a number of too many digits"),
        ("save(text='x' * 10**7)", "was given arguments of 10.0 MB; at most 8.4 MB"),
    ],
)
def test_wrong_arguments_are_a_type_error_and_nothing_is_sent(
    offered: Any, call: str, why: str
) -> None:
    offered.run(
        "cycle = []; cycle.append(cycle)\ndeep = 1\nfor _ in range(60): deep = [deep]\n"
        "deepest = 1\nfor _ in range(10**5): deepest = [deepest]"
    )
    for form in (f"tools.{call}", f"tools.{call.replace('(', '.call(', 1)}"):
        ran = offered.run(form)
        assert ran.content["ename"] == "TypeError"
        assert why in ran.content["evalue"]
        assert not ran.of("tool_request")
        assert "guest" not in ran.traceback


def test_what_is_odd_but_plain_is_sent_as_it_is(offered: Any) -> None:
    code = "tools.save(text='[{,' * 50_000, **{'from': 10**4000})"
    started = offered.start(code)
    request = asked(offered)
    assert request["content"]["arguments"] == {"text": "[{," * 50_000, "from": 10**4000}
    reply(offered, request)
    assert offered.finish(started).status == "ok"


def test_hostile_names_and_descriptions_stay_data(guest: Any) -> None:
    names = [EVIL, "two words", "class", "__class__", "_repr_html_", "call", "", "é"]
    properties = {EVIL: {"description": EVIL, "type": EVIL, "default": EVIL, "$ref": EVIL}}
    offer(
        guest,
        *(
            {"name": name, "description": EVIL, "parameters": {"properties": properties}}
            for name in names
        ),
    )
    assert values(guest, "sorted(tools) == dir(tools), len(tools)") == ["(True, 8)"]
    for name in names:
        started = guest.start(f"help(tools[{name!r}]); tools[{name!r}](**{{{EVIL!r}: 1}})")
        request = asked(guest)
        assert (request["content"]["name"], request["content"]["arguments"]) == (name, {EVIL: 1})
        reply(guest, request, EVIL)
        assert guest.finish(started).status == "ok"
    assert values(guest, "getattr(tools, 'class').__name__", "tools.call.__name__") == [
        "'class'",
        "'call'",
    ]
    # Python's own names are Python's: nothing is called by showing the object.
    assert values(guest, "type(tools).__name__", "tools.__class__.__name__") == ["'Tools'"] * 2


@pytest.mark.parametrize(
    "parameters",
    [
        {"properties": 7, "required": None},
        {"properties": {"x": None, "y": [], "z": {"type": ["string", 7], "enum": 3, "anyOf": 1}}},
        {"properties": {"x": {"anyOf": [{"anyOf": [{"anyOf": [{}] * 3}]}, 5]}}, "required": []},
    ],
)
def test_a_schema_that_says_nothing_useful_still_has_a_function(
    guest: Any, parameters: Any
) -> None:
    offer(guest, {"name": "odd", "parameters": parameters})
    started = guest.start("help(tools.odd); tools\ntools.odd(x=1)")
    reply(guest, asked(guest), 1)
    assert guest.finish(started).value == "1"


def test_a_name_that_there_is_not_says_which_there_are(offered: Any, launch: Any) -> None:
    ran = offered.run("tools.safe")
    assert (ran.content["ename"], ran.content["evalue"]) == (
        "AttributeError",
        "there is no tool 'safe'; did you mean 'save'?",
    )
    assert "there is no tool 7; dir(tools) lists" in offered.run("tools[7]").content["evalue"]
    assert offered.run("tools.save = 1").content["ename"] == "AttributeError"
    bare = launch()
    assert bare.run("tools.save").content["evalue"] == "this session has no tools for its code"
    assert values(bare, "tools", "bool(tools)", "hasattr(tools, 'save')") == [
        "<tools: none>",
        "False",
        "False",
    ]


def test_a_users_own_tools_hide_them_until_they_are_gone(offered: Any) -> None:
    assert values(offered, "tools = 3; tools", "del tools; len(tools)") == ["3", "2"]
    offered.run("%reset -f")
    assert values(offered, "len(tools)") == ["2"]
    assert "tools" not in offered.run("%who").out.whole().decode()


def test_setup_code_may_define_what_calls_tools_later(guest: Any) -> None:
    code = "def keep(text):\n    return tools.save(text=text)\nassert not dir(tools)"
    assert guest.setup(code).status == "ok"
    offer(guest, SAVE)
    started = guest.start("keep('it')")
    reply(guest, asked(guest), "kept")
    assert guest.finish(started).value == "'kept'"
    during = guest.setup("tools.save(text='x')", name="hasty")
    assert during.content["ename"] == "ToolError"
    assert "can't be called while setup code runs" in during.content["evalue"]
    for name in ("tools", "ToolError"):
        ran = guest.setup(f"{name} = 1", name="greedy")
        assert "belongs to the session's tools" in ran.content["evalue"]


def test_other_threads_and_tasks_call_too(offered: Any) -> None:
    code = (
        "import asyncio\n"
        "def in_thread(): return tools.open(n=1)\n"
        "first = asyncio.create_task(asyncio.to_thread(in_thread))\n"
        "second = asyncio.create_task(tools.open.call(n=2))\n"
        "await first, await second, await tools.open.call(n=3)"
    )
    started = offered.start(code)
    told = {}
    for _ in range(3):
        request = asked(offered)
        told[request["content"]["arguments"]["n"]] = request["content"]["background"]
        reply(offered, request, request["content"]["arguments"])
    assert offered.finish(started).value == "({'n': 1}, {'n': 2}, {'n': 3})"
    assert told == {1: True, 2: False, 3: False}


def test_a_cancelled_task_takes_its_call_back(offered: Any) -> None:
    code = (
        "import asyncio\n"
        "task = asyncio.create_task(tools.open.call())\n"
        "await asyncio.sleep(0)\n"
        "task.cancel()\n"
        "try: await task\n"
        "except asyncio.CancelledError: print('cancelled')"
    )
    started = offered.start(code)
    request = asked(offered)
    ran = offered.finish(started)
    assert ran.status == "ok", ran.traceback
    (withdrawn,) = ran.of("tool_withdrawn")
    assert withdrawn["content"] == {"id": request["content"]["id"]}
    reply(offered, request, "nobody wants it")
    assert values(offered, "1 + 1") == ["2"]


def test_the_code_may_catch_its_interrupt_and_call_again(offered: Any) -> None:
    code = (
        "try: tools.open(n=1)\n"
        "except KeyboardInterrupt: print('interrupted', flush=True)\n"
        "tools.open(n=2)"
    )
    started = offered.start(code)
    asked(offered)
    offered.process.send_signal(2)
    request = asked(offered)
    assert request["content"]["arguments"] == {"n": 2}
    reply(offered, request, "second")
    assert offered.finish(started).value == "'second'"


def test_an_await_is_interrupted_and_taken_back(offered: Any) -> None:
    started = offered.start("await tools.open.call()")
    asked(offered)
    offered.process.send_signal(2)
    ran = offered.finish(started)
    assert ran.content["ename"] == "KeyboardInterrupt"
    assert len(ran.of("tool_withdrawn")) == 1


def test_a_forked_child_is_told_that_it_can_not(offered: Any) -> None:
    code = (
        "import os\n"
        "if (pid := os.fork()) == 0:\n"
        "    try: tools.open()\n"
        "    except ToolError as error: print(error, flush=True)\n"
        "    os._exit(7)\n"
        "os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])"
    )
    ran = offered.run(code)
    assert ran.value == "7"
    assert b"open: nobody can call it in a forked process" in ran.out.whole()


def test_a_thread_of_an_ended_cell_is_refused(offered: Any) -> None:
    offered.run(
        "import threading\n"
        "go, said = threading.Event(), []\n"
        "def late():\n"
        "    go.wait()\n"
        "    try: tools.open()\n"
        "    except ToolError as error: said.append(str(error))\n"
        "thread = threading.Thread(target=late); thread.start()"
    )
    assert values(offered, "go.set(); thread.join(); said") == [
        "['open: the cell that called it has ended']"
    ]


def test_another_loop_is_told_what_to_do(offered: Any) -> None:
    code = "coroutine = tools.open.call()\ntry: coroutine.send(None)\nfinally: coroutine.close()"
    ran = offered.run(code)
    assert ran.content["ename"] == "RuntimeError"
    assert "call tools.open() in a thread" in ran.content["evalue"]


def test_the_error_survives_pickling_and_says_who(offered: Any) -> None:
    started = offered.start(
        "import pickle\n"
        "try: tools.open()\n"
        "except ToolError as error: again = pickle.loads(pickle.dumps(error))\n"
        "str(again), again.tool, again.message, again.type"
    )
    error = {"message": "denied by policy", "type": "Denied"}
    reply(offered, asked(offered), piece=None, error=error)
    assert offered.finish(started).value == (
        "('open: denied by policy', 'open', 'denied by policy', 'Denied')"
    )


def test_replies_in_pieces_to_nobody_or_forged_are_told_apart(offered: Any) -> None:
    started = offered.start("tools.open()")
    request = asked(offered)
    stranger = {"content": {"id": 12345}}
    reply(offered, stranger, "to nobody")
    forger = type(offered.session)(key=b"another key")
    content = {"id": request["content"]["id"], "piece": '"forged"'}
    forger.send(offered.control, "tool_reply", content)
    reply(offered, request, piece='["fir', more=True)
    reply(offered, request, piece='st"]')
    assert offered.finish(started).value == "['first']"


def test_a_result_that_can_not_be_read_here_is_a_tools_error(offered: Any) -> None:
    started = offered.start("tools.open()")
    reply(offered, asked(offered), piece="[" * 100_000 + "]" * 100_000)
    ran = offered.finish(started)
    assert ran.content["ename"] == "ToolError"
    assert "can't be read here" in ran.content["evalue"]


def test_another_clients_cell_has_nobody_to_ask(offered: Any) -> None:
    fields = {"code": "tools.open()", "silent": False, "allow_stdin": False}
    offered.request("execute_request", fields)
    reply_ = offered.reply()
    assert reply_["content"]["ename"] == "ToolError"
    assert "nor for other clients' cells" in reply_["content"]["evalue"]


def test_a_call_whose_host_is_gone_fails_and_the_next_host_offers_anew(launch: Any) -> None:
    guest = launch(keep=True)
    offer(guest, SAVE, OPEN)
    code = (
        "try: tools.open()\nexcept ToolError as error: print(error, flush=True)\nprint(dir(tools))"
    )
    started = guest.start(code)
    # Where messages are kept by their marks, requests have none: they must not be said again.
    assert asked(guest)["metadata"] == {}
    again = guest.request("replay_request", {"pair": guest.pair, "after": 0}, None, guest.control)
    begun = guest.until_idle(again)
    assert not any(message["msg_type"] == "tool_request" for message in begun)
    ran = guest.finish(started)
    assert b"open: the service that ran it is gone" in ran.out.until(b"[]\n")
    offer(guest, SAVE)
    assert guest.run("dir(tools)").value == "['save']"
