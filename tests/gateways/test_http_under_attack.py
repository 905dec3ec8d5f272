"""security.md 7: whatever a session does, its status and others' are told within a second."""

from __future__ import annotations

import pytest
import trio
from http_service import Start

from patience import promptly

pytestmark = pytest.mark.needs("userns", "pidns", "seccomp", "cgroups")

# It runs in a sandbox or not at all.
PROOF = """
import os, signal, sys
ours = open("/proc/self/status").read()
assert os.getpid() < 10 and os.getuid() == 1000, "not tried: this is no sandbox"
assert "CapEff:\\t0000000000000000" in ours and "Seccomp:\\t2" in ours, "not tried: no sandbox"
"""
BOMB = """
told = False
while True:
    try:
        os.fork()
    except OSError:
        if not told:
            told = True
            os.write(1, b"begun\\n")
"""
FLOOD = """
print("begun", flush=True)
while True: os.write(1, b"x" * 65536)
"""
HOG = """
print("begun", flush=True)
x = []
while True:
    try: x.append(bytes(1 << 16))
    except MemoryError: pass
"""


@pytest.mark.parametrize("attack", [BOMB, FLOOD, HOG], ids=["forks", "output", "memory"])
async def test_status_of_every_session_is_told_while_one_attacks(start: Start, attack: str) -> None:
    limits = {"processes": 64, "memory_bytes": 128 << 20}
    async with start(limits=limits, isolation="best") as running, running.client() as http:
        sessions = [(await http.post("/v1/sessions", json={})).json()["id"] for _ in range(2)]
        path = f"/v1/sessions/{sessions[0]}"
        post = {"input": {"code": PROOF + attack}, "timeout_s": 3}
        async with running.events(f"{path}/calls", post=post) as events:
            await events.until("output")
            ended = False

            async def follow() -> None:
                nonlocal ended
                call = await events.final()
                assert call["status"] in ("timeout", "killed"), call
                ended = True

            async with trio.open_nursery() as nursery:
                nursery.start_soon(follow)
                asked = 0
                while not ended:
                    for session in sessions:
                        with promptly():
                            answer = await http.get(f"/v1/sessions/{session}")
                        assert answer.status_code == 200
                    asked += 1
        assert asked
        calls = f"/v1/sessions/{sessions[1]}/calls"
        answer = await http.post(calls, json={"input": {"code": "6 * 7"}})
        assert answer.json()["content"] == [{"type": "text", "text": "=> 42"}]
