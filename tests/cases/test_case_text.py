"""Characters and bytes that break careless code: shown, escaped where need be, never lost."""

from __future__ import annotations

import pytest
from call_events import logged

from replsvc.coordinator import Coordinator
from replsvc.session import Session


async def test_a_lone_surrogate_between_two_prints_loses_neither(session: Session) -> None:
    call = await session.run(r"print('before'); print('\udc80'); print('after')")
    assert call.status == "ok"
    assert call.text == "before\n\\x80\nafter"
    assert await logged(session, call) == b"before\n\x80\nafter\n"


async def test_a_surrogate_that_stands_for_no_byte_is_shown_escaped(session: Session) -> None:
    call = await session.run(r"print('a\ud83d'); print('b')")
    assert call.text == "a\\ud83d\nb"


async def test_a_lone_surrogate_is_a_value(session: Session) -> None:
    call = await session.run(r"'a\udc80b'")
    assert call.text == r"=> 'a\udc80b'"
    assert call.result == {"text/plain": r"'a\udc80b'"}


async def test_an_object_whose_repr_has_a_lone_surrogate_is_shown_escaped(
    session: Session,
) -> None:
    call = await session.run("class A:\n    def __repr__(self): return '<\\udc80>'\nA()")
    assert (call.status, call.text) == ("ok", r"=> <\udc80>")


async def test_a_lone_surrogate_in_an_exception_is_shown_escaped(session: Session) -> None:
    call = await session.run(r"raise ValueError('bad \udc80')")
    assert call.error is not None
    assert call.error.evalue == r"bad \udc80"
    assert call.text.endswith(r"ValueError: bad \udc80")
    call.model_dump_json()


async def test_a_file_name_that_is_no_utf8_can_be_used_and_printed(session: Session) -> None:
    call = await session.run(
        r"import os; open('\udc80.txt', 'w').close(); print(os.listdir('.')[0]); os.listdir('.')"
    )
    assert call.text == "\\x80.txt\n=> ['\\udc80.txt']"
    call = await session.run(r"open('no\udc80where')")
    assert call.text.endswith(r"No such file or directory: 'no\udc80where'")


async def test_a_byte_that_is_no_utf8_is_shown_escaped_and_logged_as_it_is(
    session: Session,
) -> None:
    call = await session.run(r"import os; n = os.write(1, b'<\xff>\n')")
    assert call.text == r"<\xff>"
    assert await logged(session, call) == b"<\xff>\n"


async def test_raw_bytes_go_through_sys_stdout_buffer(session: Session) -> None:
    call = await session.run(r"import sys; n = sys.stdout.buffer.write(b'\xc3\xa9\x00\xfe\n')")
    assert call.text == r"é\x00\xfe"
    assert await logged(session, call) == b"\xc3\xa9\x00\xfe\n"


async def test_a_character_split_over_two_writes_is_one(session: Session) -> None:
    call = await session.run(r"import os; n = os.write(1, b'\xe2\x82'); n = os.write(1, b'\xac')")
    assert call.text == "€"
    # each turn to the other stream makes a piece of its own, however they are read
    call = await session.run(
        "import sys\nfor byte in '€😀\\n'.encode():\n"
        "    n = sys.stdout.buffer.write(bytes([byte])); n = sys.stderr.write('')"
    )
    assert call.text == "€😀"
    assert await logged(session, call) == "€😀\n".encode()


async def test_a_character_that_is_never_finished_is_shown_escaped(session: Session) -> None:
    call = await session.run(r"import os; n = os.write(1, b'a\xe2\x82')")
    assert call.text == r"a\xe2\x82"
    assert await logged(session, call) == b"a\xe2\x82"


async def test_emoji_in_source_run_print_and_fail_at_the_right_place(session: Session) -> None:
    call = await session.run("名 = '😀🎉'; print(名); 名")
    assert call.text == "😀🎉\n=> '😀🎉'"
    call = await session.run("名 = '😀' + 1")
    assert "    名 = '😀' + 1\n" in call.text


@pytest.mark.parametrize("locale", ["C", "POSIX", "no_SUCH.locale"])
async def test_any_locale_leaves_text_utf8(coordinator: Coordinator, locale: str) -> None:
    env = {"LANG": locale, "LC_ALL": locale}
    async with coordinator.session(env=env) as session:
        call = await session.run(
            "import os, sys\n"
            "with open('ü.txt', 'w') as file: n = file.write('é😀')\n"
            "print(open('ü.txt').read(), os.listdir('.'), sys.getfilesystemencoding())"
        )
        assert call.text == "é😀 ['ü.txt'] utf-8"
        call = await session.run(
            "import subprocess\n"
            "subprocess.run([sys.executable, '-c', 'print(\"é😀\")'])\n!echo 'é😀'"
        )
        assert call.text == "é😀\né😀"
