"""Code that puts something else in the place of `sys.stdout` and `sys.stderr` keeps its session."""

from __future__ import annotations

import pytest

from replsvc.session import Session

WITHOUT_FLUSH = """
class T:
    def __init__(self, to): self.to = to
    def write(self, text): self.to.write(text)
sys.stdout, sys.stderr = T(sys.stdout), T(sys.stderr)
"""
REFUSING = """
class F:
    def flush(self): raise ValueError('no')
    def write(self, text): raise ValueError('no')
sys.stdout = sys.stderr = F()
"""
NONE = "sys.stdout = sys.stderr = None"


@pytest.mark.parametrize("replace", [WITHOUT_FLUSH, REFUSING, NONE])
async def test_whatever_stands_for_the_streams_no_reply_and_no_name_is_lost(
    session: Session, replace: str
) -> None:
    await session.run("open('bad.py', 'w').write('1/0')")
    call = await session.run(f"import sys\n{replace}\na = 6\na")
    assert (call.status, call.text) == ("ok", "=> 6")
    assert (await session.run("display('shown'); a")).text == "'shown'\n=> 6"
    failed = await session.run("1/0")
    assert failed.error is not None
    assert failed.error.ename == "ZeroDivisionError"
    assert "ZeroDivisionError" in (await session.run("%run bad.py")).text
    await session.run("import warnings; warnings.warn('x')")
    assert (await session.run("input()")).status == "error"
    assert (await session.run("a")).text == "=> 6"


async def test_what_is_printed_through_a_replaced_stream_arrives(session: Session) -> None:
    await session.run(f"import sys\n{WITHOUT_FLUSH}")
    assert (await session.run("print('out')")).text == "out"
    assert (await session.run("sys.stderr.write('err\\n')")).text == "err"


async def test_a_print_to_a_stream_that_refuses_is_the_cells_own_error(session: Session) -> None:
    call = await session.run(f"import sys\n{REFUSING}\nprint('out')")
    assert call.error is not None
    assert (call.error.ename, call.error.evalue) == ("ValueError", "no")
    assert (await session.run("sys.stdout = sys.__stdout__\nprint('back')")).text == "back"
