from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from replsvc.store import EventLog

WRITER = """if True:
    import os, sys, trio
    from pathlib import Path
    from replsvc.calls import Draft
    from replsvc.store import EventLog, SessionRecord

    async def append(log, session_id):
        while True:
            draft = Draft(kind="output", call_id="c", data={"n": [session_id]}, blob=b"x" * 3000)
            for event in await log.append(session_id, [draft, draft]).wait():
                os.write(1, f"{session_id} {event.seq}\\n".encode())

    async def main():
        async with EventLog.open(Path(sys.argv[1])) as log, trio.open_nursery() as nursery:
            for n in range(8):
                await log.create_session(SessionRecord(id=f"s{n}", state="open"))
                nursery.start_soon(append, log, f"s{n}")

    trio.run(main)
"""


def write_until_killed(directory: Path, lines: int) -> dict[str, list[int]]:
    """Kill a writer when it has acknowledged `lines` events; what it acknowledged, by session."""
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(directory)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert writer.stdout is not None
    said = [writer.stdout.readline() for _ in range(lines)]
    writer.kill()
    said += writer.communicate()[0].splitlines()

    acknowledged: dict[str, list[int]] = {}
    for line in said:
        session_id, seq = line.decode().split()
        acknowledged.setdefault(session_id, []).append(int(seq))
    return acknowledged


@pytest.mark.parametrize("lines", [1, 400, 4000])
async def test_a_kill_amid_writing_loses_nothing_that_was_acknowledged(
    tmp_path: Path, lines: int
) -> None:
    acknowledged = write_until_killed(tmp_path, lines)
    assert sum(map(len, acknowledged.values())) >= lines

    async with EventLog.open(tmp_path) as log:
        for session_id, seqs in acknowledged.items():
            assert seqs == list(range(1, len(seqs) + 1))
            found: list[int] = []
            while page := await log.read(session_id, len(found)):
                found += [event.seq for event in page]
                assert all(event.data == {"n": [session_id]} for event in page)
                assert all(event.blob == b"x" * 3000 for event in page)
            assert found == list(range(1, len(found) + 1))
            assert len(found) >= len(seqs)
            assert len(found) % 2 == 0  # an append is there with all its events or not at all
