"""What Jupyter's own client gets from our guest beyond the conformance suite, beside our client."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from wired import Wired

from replsvc_kernels.kernel import Kernel
from replsvc_kernels.messages import Output, Stream

PATIENCE_S = 15.0
ISOLATES = pytest.mark.needs("userns", "pidns", "seccomp")


@pytest.fixture(params=["process", pytest.param("forkserver", marks=ISOLATES)])
def wired(request: pytest.FixtureRequest) -> Iterator[Wired]:
    kernel = Wired(request.param)
    try:
        yield kernel
    finally:
        kernel.shutdown_kernel()


@pytest.fixture
def client(wired: Wired) -> Iterator[Any]:
    client = wired.client()
    client.start_channels(hb=False)
    try:
        client.wait_for_ready(timeout=PATIENCE_S)
        yield client
    finally:
        client.stop_channels()


def heard(client: Any, request: str) -> list[dict[str, Any]]:
    """What is published for a request, until its idle."""
    messages: list[dict[str, Any]] = []
    while True:
        message = client.get_iopub_msg(timeout=PATIENCE_S)
        if message["parent_header"].get("msg_id") != request:
            continue
        if message["content"].get("execution_state") == "idle":
            return messages
        messages.append(message)


def reply_to(client: Any, request: str, channel: str = "shell") -> dict[str, Any]:
    while True:
        reply: dict[str, Any] = getattr(client, f"get_{channel}_msg")(timeout=PATIENCE_S)
        if reply["parent_header"]["msg_id"] == request:
            return reply


def texts(messages: list[dict[str, Any]]) -> list[Any]:
    """Streams joined, and the text of displays, in their order."""
    told: list[Any] = []
    for message in messages:
        content = message["content"]
        if message["msg_type"] == "stream":
            if told and isinstance(told[-1], tuple) and told[-1][0] == content["name"]:
                content = {**content, "text": told.pop()[1] + content["text"]}
            told.append((content["name"], content["text"]))
        elif "data" in content:
            told.append(content["data"]["text/plain"])
        elif message["msg_type"] == "error":
            told.append(content["ename"])
    return told


def test_all_that_a_cell_writes_comes_as_streams_in_its_place(client: Any) -> None:
    code = (
        "import os, subprocess, sys\nfrom IPython.display import display\n"
        "print('a'); display({'text/plain': 'D'}, raw=True)\n"
        "subprocess.run(['echo', 'b']); os.write(1, 'ü'.encode()); print()\n"
        "print('c' * 200_000)\n1 / 0"
    )
    assert texts(heard(client, client.execute(code))) == [
        ("stdout", "a\n"),
        "D",
        ("stdout", f"b\nü\n{'c' * 200_000}\n"),
        "ZeroDivisionError",
    ]


def test_what_a_process_writes_later_belongs_to_the_cell_that_started_it(client: Any) -> None:
    started = client.execute(
        "import subprocess\n"
        "child = subprocess.Popen('read x; echo $x', shell=True, stdin=subprocess.PIPE)"
    )
    assert texts(heard(client, started)) == []
    client.execute("child.communicate(b'late\\n'); print('now')")
    late = client.get_iopub_msg(timeout=PATIENCE_S)
    while late["msg_type"] != "stream" or late["parent_header"]["msg_id"] != started:
        late = client.get_iopub_msg(timeout=PATIENCE_S)
    assert late["content"] == {"name": "stdout", "text": "late\n"}


def test_a_forked_child_writes_to_its_parents_cell(client: Any) -> None:
    code = "import os\nif os.fork():\n    os.wait()\nelse:\n    print('child')"
    request = client.execute(code)
    assert texts(heard(client, request)) == [("stdout", "child\n")]
    assert reply_to(client, request)["content"]["status"] == "ok"


def test_input_and_getpass_are_answered_over_the_stdin_channel(client: Any) -> None:
    request = client.execute("import getpass; input('name? ') + getpass.getpass('word? ')")
    asked = []
    for answer in ("me", "secret"):
        question = client.get_stdin_msg(timeout=PATIENCE_S)
        assert question["msg_type"] == "input_request"
        asked.append((question["content"]["prompt"], question["content"]["password"]))
        client.input(answer)
    assert asked == [("name? ", False), ("word? ", True)]
    assert "'mesecret'" in texts(heard(client, request))


def test_input_without_stdin_is_an_error_at_once(client: Any) -> None:
    request = client.execute("input()", allow_stdin=False)
    assert reply_to(client, request)["content"]["ename"] == "StdinNotImplementedError"


def test_an_error_stops_what_its_client_has_queued_behind_it(client: Any) -> None:
    first = client.execute("input(); 1 / 0")
    client.get_stdin_msg(timeout=PATIENCE_S)
    second = client.execute("after = 1")
    client.input("")  # only now does it fail
    assert reply_to(client, first)["content"]["status"] == "error"
    assert reply_to(client, second)["content"]["status"] == "aborted"
    third = client.execute("'after' in globals()")
    assert texts(heard(client, third)) == ["False"]


def test_an_error_stops_nothing_where_that_is_not_wanted(client: Any) -> None:
    first = client.execute("1 / 0", stop_on_error=False)
    second = client.execute("2")
    assert reply_to(client, first)["content"]["status"] == "error"
    assert reply_to(client, second)["content"]["status"] == "ok"


def test_kernel_and_comms_are_described(client: Any) -> None:
    info = reply_to(client, client.kernel_info())["content"]
    assert (info["implementation"], info["language_info"]["name"]) == ("ipython", "python")
    request = client.comm_info()
    assert reply_to(client, request)["content"] == {"status": "ok", "comms": {}}
    opened = heard(client, client.execute("from comm import create_comm; c = create_comm('t')"))
    (comm,) = (message["content"] for message in opened if message["msg_type"] == "comm_open")
    comms = reply_to(client, client.comm_info())["content"]["comms"]
    assert comms == {comm["comm_id"]: {"target_name": "t"}}


def test_a_silent_cell_is_not_counted_and_not_remembered(client: Any) -> None:
    client.execute("'told'")
    client.execute("x = 1", silent=True)
    request = client.execute("2", user_expressions={"x": "x", "y": "no_such"})
    reply = reply_to(client, request)["content"]
    assert reply["execution_count"] == 2
    assert reply["user_expressions"]["x"]["data"] == {"text/plain": "1"}
    assert reply["user_expressions"]["y"]["status"] == "error"
    entries = reply_to(client, client.history(hist_access_type="tail", n=9))["content"]["history"]
    assert [entry[1:] for entry in entries] == [[1, "'told'"], [2, "2"]]


def test_history_is_found_by_range_and_pattern(client: Any) -> None:
    for code in ("a = 1", "b = 2", "a = 1", "b + a"):
        client.execute(code)

    def found(**which: Any) -> list[Any]:
        return reply_to(client, client.history(**which))["content"]["history"]

    assert found(hist_access_type="range", start=2, stop=4) == [[0, 2, "b = 2"], [0, 3, "a = 1"]]
    assert found(hist_access_type="range", session=-1) == []
    assert found(hist_access_type="search", pattern="a*", unique=True) == [[0, 3, "a = 1"]]
    assert found(hist_access_type="search", pattern="*a*", n=1, output=True) == [
        [0, 4, ["b + a", "3"]]
    ]


def test_a_client_may_shut_the_kernel_down(wired: Wired, client: Any) -> None:
    request = client.shutdown()
    assert reply_to(client, request, "control")["content"] == {"status": "ok", "restart": False}
    assert wired.call(wired.kernel.wait_exited).code == 0


def test_our_client_and_jupyters_share_names_but_no_output(wired: Wired, client: Any) -> None:
    async def run(kernel: Kernel, code: str) -> list[Output]:
        async with kernel.execute(code, cell="ours") as cell:
            return [output async for output in cell]

    request = client.execute("mine = 7; print('theirs')")
    assert texts(heard(client, request)) == [("stdout", "theirs\n")]
    assert wired.call(run, wired.kernel, "print(mine)") == [Stream("stdout", b"7\n", "ours")]
    request = client.execute("print('again')")
    assert texts(heard(client, request)) == [("stdout", "again\n")]
