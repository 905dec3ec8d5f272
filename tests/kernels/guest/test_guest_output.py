"""Which pipe a byte comes out of, and where display messages stand between bytes."""

from __future__ import annotations

import re
from typing import Any

import pytest

MARK = rb"\x1b]9913;5eed;(\d+)\x07"


def test_a_cells_streams_end_when_nothing_can_write_to_them_any_more(guest: Any) -> None:
    ran = guest.run("import sys\nprint('out'); print('err', file=sys.stderr)")
    assert (ran.out.whole(), ran.err.whole()) == (b"out\n", b"err\n")
    assert ran.of("stream") == []


def test_every_way_of_writing_comes_in_its_order(guest: Any) -> None:
    ran = guest.run(
        "import ctypes, os, subprocess, sys\n"
        "c = ctypes.CDLL(None)\n"
        "print('a', end=''); sys.stdout.buffer.write(b'b'); os.write(1, b'c'); c.puts(b'd')\n"
        "print('e', end=''); subprocess.run('echo f', shell=True)\n"
        "print('g', end=''); os.system('echo h')\n"
        "print('i', end='')\n"
        "!echo j\n"
        "subprocess.run(['echo', 'k'], stdout=sys.stdout); print('l', file=sys.__stdout__)\n"
        "c.printf(b'm')"
    )
    assert ran.status == "ok", ran.traceback
    assert re.sub(MARK, b"", ran.out.whole()) == b"abcd\nef\ngh\nij\nk\nl\nm"


def test_what_python_holds_back_is_written_when_it_turns_to_the_other_stream(guest: Any) -> None:
    started = guest.start(
        "import os, sys\nprint('half', end='')\nprint('other', file=sys.stderr)\n"
        "r, w = os.pipe()\nos.read(r, 1)"
    )
    assert started[2].until(b"other\n")
    assert started[1].until(b"half") == b"half"
    assert guest.interrupt(started, b"half").content["ename"] == "KeyboardInterrupt"


def test_bytes_and_surrogates_are_never_an_error(guest: Any) -> None:
    ran = guest.run(
        "import sys\nprint('\\udc80\\ud800\\u20ac')\nsys.stdout.buffer.write(b'\\xff\\n')\n"
        "sys.stderr.write('\\udfff\\n')\nNone"
    )
    assert ran.out.whole() == b"\x80\\ud800\xe2\x82\xac\n\xff\n"
    assert ran.err.whole() == b"\\udfff\n"


def test_ten_megabytes_of_prints_arrive_whole(guest: Any) -> None:
    ran = guest.run("for i in range(100_000): print(f'{i:099}')")
    lines = ran.out.whole().split(b"\n")
    assert len(lines) == 100_001
    assert [int(line) for line in lines[:-1]] == list(range(100_000))


def test_nothing_that_was_printed_is_kept_in_memory(guest: Any) -> None:
    guest.run("for i in range(20_000): print('x' * 99)")
    seen = guest.run(
        "import gc\nsum(len(o) for o in gc.get_objects() if type(o) is list and len(o) > 10_000)"
    )
    assert seen.value == "0"
    history = "get_ipython().history_manager"
    assert guest.run(f"getattr({history}, 'outputs', None) or 'empty'").value == "'empty'"


def test_a_thread_goes_on_writing_to_the_cell_that_started_it(guest: Any) -> None:
    first = guest.run(
        "import subprocess, sys, threading\n"
        "go = threading.Event()\n"
        "def work():\n"
        "    go.wait()\n"
        "    print('late'); sys.stdout.buffer.write(b'bytes\\n')\n"
        "    subprocess.run('echo child; echo child >&2', shell=True)\n"
        "    display('shown')\n"
        "thread = threading.Thread(target=work); thread.start()"
    )
    second = guest.start("go.set(); thread.join()\nprint('second')")
    shown = guest.next_from_iopub()
    while shown["msg_type"] != "display_data":
        shown = guest.next_from_iopub()
    second = guest.finish(second)
    assert second.out.until(b"second\n") == b"second\n"
    assert re.sub(MARK, b"", first.out.whole()) == b"late\nbytes\nchild\n"
    assert re.sub(MARK, b"", first.err.whole()) == b"child\n"
    assert shown["parent_header"]["msg_id"] == first.reply["parent_header"]["msg_id"]


def test_a_thread_takes_over_no_other_context_of_its_starter(guest: Any) -> None:
    ran = guest.run(
        "import decimal, threading\ndecimal.getcontext().prec = 50\nseen = []\n"
        "t = threading.Thread(target=lambda: seen.append(decimal.getcontext().prec))\n"
        "t.start(); t.join(); seen"
    )
    assert ran.value == "[28]"


def test_a_task_goes_on_writing_to_the_cell_that_made_it(guest: Any) -> None:
    first = guest.run(
        "import asyncio\ngo = asyncio.Event()\n"
        "async def work():\n    await go.wait()\n    print('late')\n"
        "await asyncio.sleep(0); task = asyncio.create_task(work())"
    )
    second = guest.run("go.set(); await task; del task\nprint('second')")
    assert second.out.whole() == b"second\n"
    assert first.out.until(b"late\n") == b"late\n"


def test_a_background_child_writes_to_its_cell_however_late(guest: Any) -> None:
    first = guest.run(
        "import subprocess\n"
        "child = subprocess.Popen('read x; echo $x', shell=True, stdin=subprocess.PIPE)"
    )
    second = guest.run("child.communicate(b'late\\n')\nprint('second')")
    assert first.out.until(b"late\n") == b"late\n"
    assert second.out.whole() == b"second\n"


def test_a_stream_put_in_place_of_sys_stdout_gets_the_output(guest: Any) -> None:
    ran = guest.run(
        "import contextlib, io\n"
        "with contextlib.redirect_stdout(io.StringIO()) as held: print('hidden')\n"
        "import sys\nwrite = sys.stdout.write\n"
        "sys.stdout.write = lambda s: write(s.upper()); print('loud')\n"
        "sys.stdout.write = write; print('plain')\nheld.getvalue()"
    )
    assert ran.value == "'hidden\\n'"
    assert re.sub(MARK, b"", ran.out.whole()) == b"LOUD\nplain\n"
    # and the function that was put back belongs to no cell
    assert guest.run("print('next')").out.whole() == b"next\n"


def test_a_redirected_descriptor_takes_pythons_output_along(guest: Any) -> None:
    ran = guest.run(
        "import os\nkept = os.dup(1); null = os.open('/dev/null', os.O_WRONLY)\n"
        "os.dup2(null, 1); print('gone'); os.dup2(kept, 1); os.close(kept); print('back')"
    )
    assert ran.out.whole() == b"back\n"


def test_a_cell_that_closed_its_descriptors_does_not_harm_the_next(guest: Any) -> None:
    guest.run("import os, sys\nsys.stdout.close(); os.close(1); os.close(2)")
    assert guest.run("print('next')").out.whole() == b"next\n"


def test_a_pipe_made_non_blocking_by_a_child_loses_nothing(guest: Any) -> None:
    ran = guest.run("import os\nos.set_blocking(1, False)\nfor _ in range(30_000): print('n' * 99)")
    assert len(ran.out.whole()) == 3_000_000


def test_the_streams_look_like_files_that_are_no_terminals(guest: Any) -> None:
    ran = guest.run(
        "import sys\n"
        "[(s.isatty(), s.encoding, s.writable(), s.fileno(), s.closed, s.name) "
        "for s in (sys.stdout, sys.stderr)]"
    )
    assert "(False, 'utf-8', True, 1, False, '<stdout>')" in ran.value
    assert "(False, 'utf-8', True, 2, False, '<stderr>')" in ran.value
    assert "write() argument must be str" in guest.run("sys.stdout.write(b'x')").traceback


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("display('x')", "display_data"),
        ("h = display('x', display_id=True); h.update('y')", "update_display_data"),
        ("'x'", "execute_result"),
        ("from IPython.display import clear_output; clear_output()", "clear_output"),
    ],
)
def test_display_messages_are_marked_in_both_streams(guest: Any, code: str, kind: str) -> None:
    ran = guest.run(f"import sys\nprint('o1'); print('e1', file=sys.stderr, end='')\n{code}")
    (message,) = ran.of(kind)
    number = message["metadata"]["replsvc_mark"]
    mark = b"\x1b]9913;5eed;%d\x07" % number
    assert ran.out.whole().endswith(mark)
    assert ran.err.whole().endswith(mark)
    assert re.sub(MARK, b"|", ran.out.whole()).strip(b"|") == b"o1\n"
    assert re.sub(MARK, b"|", ran.err.whole()).strip(b"|") == b"e1"


def test_marks_stand_exactly_where_the_message_was_sent(guest: Any) -> None:
    ran = guest.run(
        "import os\nprint('a', end=''); display(1); os.system('echo b'); display(2); print('c')"
    )
    assert ran.out.whole() == b"a\x1b]9913;5eed;1\x07b\n\x1b]9913;5eed;2\x07c\n"
    assert [m["metadata"]["replsvc_mark"] for m in ran.of("display_data")] == [1, 2]


def test_a_figure_is_displayed_as_a_picture(guest: Any) -> None:
    pytest.importorskip("matplotlib")
    ran = guest.run("import matplotlib.pyplot as plt\nplt.plot([1, 2]);")
    (figure,) = ran.of("display_data")
    assert figure["content"]["data"]["image/png"].startswith("iVBOR")


def test_documentation_is_displayed_and_not_paged(guest: Any) -> None:
    ran = guest.run("len?")
    (shown,) = ran.of("display_data")
    assert "Return the number of items" in shown["content"]["data"]["text/plain"]
    assert ran.content["payload"] == []


def test_messages_with_lone_surrogates_are_sent_escaped(guest: Any) -> None:
    ran = guest.run("display({'text/plain': 'x\\ud800'}, raw=True)")
    (shown,) = ran.of("display_data")
    assert shown["content"]["data"]["text/plain"] == "x\\ud800"


@pytest.mark.parametrize("count", [1, 2])
def test_script_magics_print_to_their_own_cell(guest: Any, count: int) -> None:
    for number in range(count):
        ran = guest.run(f"%%bash\necho out{number}\necho err{number} >&2")
    assert ran.out.until(b"out%d\n" % (count - 1))
    assert ran.err.until(b"err%d\n" % (count - 1))


def test_shell_commands_write_to_the_cell_and_leave_their_exit_code(guest: Any) -> None:
    ran = guest.run("name = 'world'\n!echo hello {name}; test -t 1 || echo no tty; exit 3")
    assert ran.status == "ok"
    assert ran.out.whole() == b"hello world\nno tty\n"
    assert guest.run("_exit_code").value == "3"
    assert guest.run("lines = !echo a; echo b\nlines").value == "['a', 'b']"


def test_where_python_turns_from_one_stream_to_the_other_both_have_a_mark(guest: Any) -> None:
    ran = guest.run("import sys\nfor n in range(3): print(n); print(n, file=sys.stderr)")
    ran.out.whole(), ran.err.whole()
    marks = [b"\x1b]9913;5eed;t%d\x07" % n for n in range(1, 6)]
    out, err = bytes(ran.out.data), bytes(ran.err.data)
    assert out == b"0\n%b%b1\n%b%b2\n%b" % tuple(marks)
    assert err == b"%b0\n%b%b1\n%b%b2\n" % tuple(marks)


def test_marks_go_to_the_pipe_wherever_the_user_sends_descriptor_1(guest: Any) -> None:
    ran = guest.run(
        "import os, sys\nos.dup2(os.open('f', os.O_CREAT | os.O_RDWR), 1)\n"
        "print('to file'); print('err', file=sys.stderr); display(1)"
    )
    assert ran.err.until(b"err\n")
    assert guest.run("open('f').read()").value == repr("to file\n")
