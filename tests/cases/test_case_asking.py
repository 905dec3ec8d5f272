"""What asks a person, where nobody answers: an immediate clear error, and never a hang."""

from __future__ import annotations

import pytest

from replsvc.session import Session


@pytest.mark.parametrize(
    "code",
    [
        "input('name? ')",
        "import getpass; getpass.getpass()",
        "breakpoint()",
        "import pdb; pdb.set_trace()",
        "def f():\n    breakpoint()\n    return 1\nf()",
        "%debug",
        "import pdb; pdb.pm()",
        "%debug f()",
        "%run -d script.py",
        "import builtins; builtins.input()",
    ],
)
async def test_asking_is_an_error_at_once(session: Session, code: str) -> None:
    await session.run("open('script.py', 'w').write('x = 1\\n')\ndef f(): return 1")
    await session.run("1 / 0")
    call = await session.run(f"print('before')\n{code}\nprint('never')", timeout_s=30)
    assert call.status == "error", call.text
    assert call.error is not None
    assert call.error.ename == "StdinNotImplementedError"
    assert call.text.startswith("before\n")
    assert "needs someone to answer it, and nobody" in call.text
    assert "never" not in call.output.text
    assert (await session.run("'alive'")).text == "=> 'alive'"


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("import sys; sys.stdin.read()", "=> ''"),
        ("import sys; sys.stdin.readline()", "=> ''"),
        ("import os; os.read(0, 10)", "=> b''"),
        ("!cat", "(no output)"),
        ('!read answer; echo "[$answer]"', "[]"),
        ("import subprocess; subprocess.run(['cat'], capture_output=True).stdout", "=> b''"),
    ],
)
async def test_standard_input_is_empty_for_whoever_reads_it(
    session: Session, code: str, text: str
) -> None:
    assert (await session.run(code, timeout_s=30)).text == text


async def test_an_error_with_pdb_on_is_only_an_error(session: Session) -> None:
    await session.run("%pdb on")
    call = await session.run("1 / 0", timeout_s=30)
    assert call.text.endswith("ZeroDivisionError: division by zero")
