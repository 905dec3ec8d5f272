from __future__ import annotations

import tracemalloc

from replsvc.calls import Draft
from replsvc.store import EventLog

MiB = 1024 * 1024


async def test_a_calls_output_comes_back_byte_for_byte(log: EventLog) -> None:
    written = b""
    for n in range(300):
        blob = bytes([n % 256]) * (n * 37 % 20_000)
        drafts = [
            Draft(kind="output", call_id="mine", data={"stream": "stdout"}, blob=blob),
            Draft(kind="output", call_id="other", blob=b"not mine"),
            Draft(kind="update", call_id="mine", blob=b"no output"),
            Draft(kind="output", call_id="mine", data={"display": True}),
        ]
        pending = log.append("s1", drafts)
        written += blob
    await pending.wait()
    await log.append("s2", [Draft(kind="output", call_id="mine", blob=b"elsewhere")]).wait()

    chunks = [chunk async for chunk in log.output_bytes("s1", "mine")]

    assert b"".join(chunks) == written
    assert all(chunks)


async def test_a_call_without_output_has_no_bytes(log: EventLog) -> None:
    assert [chunk async for chunk in log.output_bytes("s1", "nothing")] == []


async def test_reading_a_large_output_holds_about_a_page(log: EventLog) -> None:
    for _ in range(48):
        pending = log.append(
            "s1",
            [Draft(kind="output", call_id="c", blob=bytes(64 * 1024)) for _ in range(16)],
        )
        await pending.wait()
    del pending
    log.forget("s1")
    await log.append("s2", []).wait()

    total = 0
    tracemalloc.start()
    try:
        async for chunk in log.output_bytes("s1", "c"):
            total += len(chunk)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert total == 48 * MiB
    assert peak < 8 * MiB
