"""Output of great size or in many pieces: all of it in the log, a bounded part for the model."""

from __future__ import annotations

import pytest
from call_events import logged

from replsvc.coordinator import Coordinator
from replsvc.session import Session

MB = 1_000_000


async def test_a_progress_bar_of_100_000_steps_shows_its_last_frame(session: Session) -> None:
    code = (
        "import sys\n"
        "for n in range(1, 100_001): sys.stderr.write(f'\\r{n:6}/100000 {n // 1000:3} %')\n"
        "sys.stderr.write('\\n'); print('done')"
    )
    call = await session.run(code)
    assert call.text == "100000/100000 100 %\ndone"
    assert not call.output.truncated
    bar = b"".join(b"\r%6d/100000 %3d %%" % (n, n // 1000) for n in range(1, 100_001)) + b"\n"
    assert await logged(session, call) == bar + b"done\n"
    assert call.output.total_bytes == len(bar) + 5


async def test_one_line_of_50_mb_arrives_whole_and_shows_both_ends(session: Session) -> None:
    call = await session.run("print('<' + 'x' * 49_999_998 + '>')")
    assert call.output.total_bytes == 50 * MB + 1
    assert call.output.total_lines == 1
    assert call.output.dropped_bytes == 0
    assert call.text.startswith("<xxx")
    assert call.text.endswith("xxx>")
    assert f"of {50 * MB + 1:,} bytes and 1 of 1 lines shown; log of call {call.id}]" in call.text
    assert len(call.text.encode()) <= session.limits.max_output_bytes
    log = await logged(session, call)
    assert (len(log), log.count(b"x")) == (50 * MB + 1, 50 * MB - 2)


async def test_10_000_flushes_of_100_bytes_lose_none(session: Session) -> None:
    call = await session.run(
        "import sys\n"
        "for n in range(10_000):\n"
        "    sys.stdout.write(f'{n:099}\\n'); sys.stdout.flush()"
    )
    assert await logged(session, call) == b"".join(b"%099d\n" % n for n in range(10_000))
    assert (call.output.total_bytes, call.output.total_lines) == (MB, 10_000)


async def test_a_megabyte_by_os_write_is_all_there(session: Session) -> None:
    call = await session.run(
        "import os\ndata = bytes(range(32, 127)) * 11_000\n"
        "view = memoryview(data)\nwhile view: view = view[os.write(1, view):]"
    )
    assert await logged(session, call) == bytes(range(32, 127)) * 11_000


async def test_200_kb_by_turns_to_stdout_and_stderr_keep_their_order(session: Session) -> None:
    call = await session.run(
        "import sys\nfor n in range(2_000):\n"
        "    print(f'o{n:048}'); print(f'e{n:048}', file=sys.stderr)"
    )
    lines = [f"{name}{n:048}" for n in range(2_000) for name in "oe"]
    assert (await logged(session, call)).decode().splitlines() == lines
    assert call.output.total_bytes == 200_000


async def test_200_kb_by_turns_on_descriptors_1_and_2_lose_none(session: Session) -> None:
    call = await session.run(
        "import os\nfor n in range(1_000):\n"
        "    a = os.write(1, b'o%098d\\n' % n); a = os.write(2, b'e%098d\\n' % n)"
    )
    for stream, name in (("stdout", b"o"), ("stderr", b"e")):
        lines = b"".join(name + b"%098d\n" % n for n in range(1_000))
        assert await logged(session, call, stream) == lines


@pytest.mark.parametrize("truncation", ["head", "tail", "middle"])
async def test_which_part_of_a_long_output_is_shown_is_the_callers_choice(
    session: Session, truncation: str
) -> None:
    call = await session.run("for n in range(9_000): print('line', n)", truncation=truncation)
    assert call.output.truncated
    assert ("line 0\n" in call.text) == (truncation != "tail")
    assert call.text.endswith("line 8999") == (truncation != "head")
    assert f"of 9,000 lines shown; log of call {call.id}]" in call.text


async def test_a_session_chooses_for_its_calls_and_values_and_errors_obey(
    coordinator: Coordinator,
) -> None:
    limits = {"max_output_bytes": 1_000, "max_output_lines": 20}
    async with coordinator.session(truncation="tail", limits=limits) as session:
        for code in (
            "for n in range(9_000): print('line', n)",
            "class Long:\n    def __repr__(self): return LINES\n"
            "LINES = '\\n'.join(f'line {n}' for n in range(9_000))\nLong()",
            "raise ValueError('\\n'.join(f'line {n}' for n in range(9_000)))",
        ):
            call = await session.run(code)
            # Of an error the kernel itself has left out a part, which is said after it.
            lines = [line for line in call.text.splitlines() if not line.startswith("[")]
            assert lines[-1] == "line 8999"
            assert "line 0\n" not in call.text
            assert "lines shown" in call.text
            assert len(call.text.encode()) <= 1_010
        call = await session.run("for n in range(9_000): print(n)", truncation="head")
        assert call.text.startswith("0\n1\n")


async def test_past_the_logs_limit_bytes_are_counted_and_said(coordinator: Coordinator) -> None:
    async with coordinator.session(limits={"max_log_bytes": 1 * MB}) as session:
        call = await session.run("import sys; n = sys.stdout.write('x' * 3_000_000)")
        assert len(await logged(session, call)) == MB
        assert call.output.total_bytes == 3 * MB
        assert call.output.dropped_bytes == 2 * MB
        assert call.output.truncated
