"""`!` commands and a call's own environment, whatever characters are in them."""

from __future__ import annotations

import pytest

from replsvc.session import Session


async def test_a_here_document_without_its_text_does_not_hang(session: Session) -> None:
    call = await session.run("!cat <<'EOF'", timeout_s=30)
    assert call.status == "ok"
    assert (await session.run("'alive'")).text == "=> 'alive'"


async def test_a_here_document_is_for_the_bash_magic(session: Session) -> None:
    call = await session.run("%%bash\ncat <<'EOF'\nit's $HOME and \"this\"\nEOF")
    assert call.text == 'it\'s $HOME and "this"'


@pytest.mark.parametrize("code", ["!echo 'a", '!echo "a', "!echo `a", "!echo $(a"])
async def test_an_unterminated_quote_is_the_shells_own_error(session: Session, code: str) -> None:
    call = await session.run(code, timeout_s=30)
    assert "ntax error" in call.text or "unexpected EOF" in call.text
    assert (await session.run("_exit_code")).text == "=> 2"


@pytest.mark.parametrize("code", ["print('a", "x = '''a", 'x = f"{1', "print('it's')"])
async def test_an_unterminated_string_is_pythons_own_error(session: Session, code: str) -> None:
    call = await session.run(code)
    assert call.error is not None
    assert call.error.ename == "SyntaxError"
    assert "Cell In[1], line 1\n" in call.text


async def test_output_and_exit_code_of_a_command_are_there(session: Session) -> None:
    assert (await session.run("!echo out; echo err >&2; exit 3")).output.total_lines == 2
    assert (await session.run("_exit_code")).text == "=> 3"
    assert (await session.run("lines = !printf 'a\\nb\\n'\nlines")).text == "=> ['a', 'b']"


async def test_a_command_that_fails_is_told_what_the_shell_says(session: Session) -> None:
    assert "not found" in (await session.run("!no-such-command")).text


@pytest.mark.parametrize(
    "value",
    ["it's", 'say "x"', "two\nlines\n", "$HOME `x` \\ %s {0}", "é😀", "", " a  b ", "a=b;c&d|e"],
)
async def test_a_variable_of_one_call_is_exact_and_gone_afterwards(
    session: Session, value: str
) -> None:
    code = "import os, subprocess\nvalue = os.environ['V']\n"
    code += "child = subprocess.run(['printenv', 'V'], capture_output=True, text=True).stdout\n"
    call = await session.run(code + "(value, child)", env={"V": value})
    assert call.result == {"text/plain": repr((value, value + "\n"))}
    assert (await session.run("'V' in os.environ")).text == "=> False"


async def test_a_variable_is_gone_after_an_error_and_back_where_it_was(session: Session) -> None:
    await session.run("import os; os.environ['V'] = 'mine'")
    await session.run("os.environ['V'] = 'changed'; 1 / 0", env={"V": "call's"})
    assert (await session.run("os.environ['V']")).text == "=> 'mine'"
