"""Cells of a host that listens alone: one reply tells all, and nothing else is lost."""

from __future__ import annotations

import os
from typing import Any

import pytest


def mark(guest: Any, number: int) -> bytes:
    return b"\x1b]9913;%s;%d\x07" % (guest.nonce.encode(), number)


class Brief:
    """One brief cell: its reply, and what was published for it."""

    def __init__(self, guest: Any, code: str, **content: Any) -> None:
        started = guest.start(code, brief=True, **content)
        self.message, self.out, self.err = started
        reply = guest.reply()
        assert reply["parent_header"]["msg_id"] == self.message["header"]["msg_id"]
        self.content, self.told = reply["content"], reply["metadata"]["replsvc"]
        later = guest.request("kernel_info_request", {})["header"]["msg_id"]
        assert guest.reply()["parent_header"]["msg_id"] == later
        self.published: list[dict[str, Any]] = []
        while True:
            said = guest.next_from_iopub()
            of = said["parent_header"].get("msg_id")
            if of == later and said["content"].get("execution_state") == "idle":
                break
            if of == self.message["header"]["msg_id"]:
                self.published.append(said)

    @property
    def kinds(self) -> list[str]:
        return [said["msg_type"] for said in self.published]


def test_the_value_comes_with_the_reply_and_nothing_else_is_said(guest: Any) -> None:
    ran = Brief(guest, "print('a')\n1+1")
    assert ran.published == []
    assert (ran.content["status"], ran.content["execution_count"]) == ("ok", 1)
    value = ran.told["result"]
    assert (value["data"], value["execution_count"]) == ({"text/plain": "2"}, 1)
    assert ran.told["published"] == 0
    assert ran.told["cpu_s"] >= 0
    # when the cell began, and where its value stands
    ran.out.until(mark(guest, value["mark"]))
    assert bytes(ran.out.data) == mark(guest, 0) + b"a\n" + mark(guest, value["mark"])


def test_an_error_is_in_the_reply_alone(guest: Any) -> None:
    ran = Brief(guest, "1/0")
    assert ran.published == []
    assert ran.content["ename"] == "ZeroDivisionError"
    assert "result" not in ran.told
    assert Brief(guest, "x = 1").told.get("result") is None


def test_what_is_displayed_is_published_before_the_value(guest: Any) -> None:
    ran = Brief(guest, "display('d')\n'v'")
    assert ran.kinds == ["display_data"]
    assert ran.told["published"] == 1
    assert ran.told["result"]["data"] == {"text/plain": "'v'"}
    place = ran.published[0]["metadata"]["replsvc_mark"]
    assert place < ran.told["result"]["mark"]


def test_a_value_with_something_after_it_is_published_in_its_place(guest: Any) -> None:
    guest.run("get_ipython().ast_node_interactivity = 'all'")
    ran = Brief(guest, "1\ndisplay(2)\nprint('p')\n3")
    assert ran.kinds == ["execute_result", "display_data"]
    assert ran.told["published"] == 2
    assert ran.told["result"]["data"] == {"text/plain": "3"}
    first, second = (said["metadata"]["replsvc_mark"] for said in ran.published)
    last = ran.told["result"]["mark"]
    ran.out.until(mark(guest, last))
    assert bytes(ran.out.data) == mark(guest, 0) + mark(guest, first) + mark(
        guest, second
    ) + b"p\n" + mark(guest, last)


@pytest.mark.parametrize(
    "code", ["'x' * 100_000", "from IPython.display import JSON\nJSON({'a': 1})"]
)
def test_a_value_that_is_large_or_no_text_is_a_message(guest: Any, code: str) -> None:
    ran = Brief(guest, code)
    assert ran.kinds == ["execute_result"]
    assert ran.told["published"] == 1
    assert "result" not in ran.told


def test_a_value_does_not_wait_for_hooks_that_take_their_time(guest: Any) -> None:
    os.mkfifo(guest.workspace / "go")
    guest.run(
        "def hook():\n    if In[-1] == '\"slow\"':\n        open('go').close()\n"
        "get_ipython().events.register('post_execute', hook)"
    )
    message, *_ = guest.start('"slow"', brief=True)
    while True:
        said = guest.next_from_iopub()
        if said["parent_header"].get("msg_id") == message["header"]["msg_id"]:
            break
    assert said["content"]["data"] == {"text/plain": "'slow'"}
    (guest.workspace / "go").open("w").close()  # only now does the hook return
    told = guest.reply()["metadata"]["replsvc"]
    assert (told["published"], told.get("result")) == (1, None)


def test_a_request_that_comes_twice_runs_once(guest: Any) -> None:
    guest.run("times = 0")
    message, *_ = guest.start("times += 1", brief=True)
    assert guest.reply()["content"]["status"] == "ok"
    guest.session.send(guest.shell, message)
    assert guest.reply()["content"]["status"] == "error"
    assert guest.run("times").value == "1"


def test_a_request_that_was_not_signed_with_the_key_runs_nothing(guest: Any) -> None:
    guest.run("times = 0")
    ours, guest.session.key = guest.session.key, b"another key"
    guest.start("times += 1", brief=True)
    guest.session.key = ours
    guest.pair -= 1  # its pipes are still to be used
    message = guest.request(
        "execute_request", {"code": "times"}, {"replsvc": {"pair": guest.pair + 1, "brief": True}}
    )
    guest.pair += 1
    reply = guest.reply()
    assert reply["parent_header"]["msg_id"] == message["header"]["msg_id"]
    assert reply["metadata"]["replsvc"]["result"]["data"] == {"text/plain": "0"}


def test_brief_and_other_requests_may_follow_each_other(guest: Any) -> None:
    assert Brief(guest, "x = 1").content["status"] == "ok"
    assert guest.run("x").value == "1"
    assert Brief(guest, "x + 1").told["result"]["data"] == {"text/plain": "2"}
    assert Brief(guest, "await __import__('asyncio').sleep(0, 5)").told["result"]["data"] == {
        "text/plain": "5"
    }
    assert guest.run("x").content["execution_count"] == 5
