"""Rich values and displays: whole in the log, readable for the model."""

from __future__ import annotations

import pytest
from call_events import outputs

from replsvc.coordinator import Coordinator
from replsvc.session import Session

NOISE = """
import os, struct, zlib
from IPython.display import Image
def chunk(kind, data):
    return struct.pack('>I', len(data)) + kind + data + struct.pack('>I', zlib.crc32(kind + data))
def png(width, height, data, level):
    head = struct.pack('>IIBBBBB', width, height, 8, 2, 0, 0, 0)
    return (b'\\x89PNG\\r\\n\\x1a\\n' + chunk(b'IHDR', head)
        + chunk(b'IDAT', zlib.compress(data, level)) + chunk(b'IEND', b''))
"""


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("Markdown('# Title\\n*x*')", "# Title\n*x*"),
        ("Latex('$x^2$')", "$x^2$"),
        ("Math('x^2')", "$\\displaystyle x^2$"),
        ("JSON({'a': [1, 'é']})", '{"a":[1,"é"]}'),
        ("HTML('<h1>A</h1><table><tr><td>1<td>2</table><script>x()</script>')", "A\n1 | 2"),
    ],
)
async def test_display_objects_are_shown_by_their_source(
    session: Session, code: str, text: str
) -> None:
    await session.run("from IPython.display import *")
    assert (await session.run(code)).text == f"=> {text}"
    assert (await session.run(f"display({code})")).text == text


async def test_an_object_with_only_html_is_shown_by_its_text(session: Session) -> None:
    call = await session.run("class A:\n    def _repr_html_(self): return '<p>one<p>two'\nA()")
    assert call.text == "=> one\ntwo"
    assert call.result is not None
    assert call.result["text/html"] == "<p>one<p>two"


async def test_sound_is_named_and_its_data_is_in_the_event(session: Session) -> None:
    make = "import array\nfrom IPython.display import *\n"
    make += "sound = Audio(array.array('h', range(20_000)).tobytes(), rate=8000)\n"
    for call in (await session.run(make + "sound"), await session.run("display(sound)")):
        assert "[audio/wav, 40," in call.text
        assert "base64" not in call.text
        assert len(call.text) < 200
        (event,) = [event for event in await outputs(session, call) if "data" in event.data]
        assert len(event.data["data"]["text/html"]) > 50_000


@pytest.mark.parametrize(
    ("code", "names"),
    [
        ("IFrame('https://example.org', 100, 100)", "text/html"),
        ("Image(url='https://example.org/a.png')", "text/html"),
        ("SVG('<svg xmlns=\"http://www.w3.org/2000/svg\"/>')", "image/svg+xml"),
        ("Javascript('1')", "application/javascript"),
    ],
)
async def test_what_has_no_text_is_named_beside_its_repr(
    session: Session, code: str, names: str
) -> None:
    await session.run("from IPython.display import *")
    for call in (await session.run(code), await session.run(f"display({code})")):
        first, note = call.text.removeprefix("=> ").splitlines()
        assert first.startswith("<IPython.")
        assert note.startswith(f"[not shown, whole in its event: {names}, ")


async def test_a_display_of_an_unknown_type_alone_is_named(session: Session) -> None:
    call = await session.run("display({'application/x-odd': 'abc'}, raw=True)")
    assert call.text == "[not shown, whole in its event: application/x-odd, 3 characters]"


@pytest.mark.needs("data")
async def test_a_data_frame_is_its_table_within_the_budget(session: Session) -> None:
    call = await session.run("import pandas\npandas.DataFrame({'a': [1, 2], 'b': ['x', 'y']})")
    assert call.text == "=>    a  b\n0  1  x\n1  2  y"
    assert call.result is not None
    assert "<table" in call.result["text/html"]
    call = await session.run(
        "pandas.set_option('display.max_rows', None)\npandas.DataFrame({'a': range(20_000)})"
    )
    assert len(call.text.encode()) <= session.limits.max_output_bytes + 10
    assert "lines shown; result]" in call.text
    assert call.result is not None
    assert "19999" in call.result["text/plain"]


async def test_an_image_of_30_mb_is_downscaled_and_whole_in_the_log(session: Session) -> None:
    size = 3_250
    call = await session.run(
        NOISE + f"rows = b''.join(b'\\0' + os.urandom({3 * size}) for _ in range({size}))\n"
        f"data = png({size}, {size}, rows, 0); print(len(data)); Image(data)"
    )
    (image,) = (part for part in call.content if part.type == "image")
    assert len(image.data) * 3 // 4 <= 5 * 1024 * 1024
    assert call.cost.image_px == session.limits.max_image_px**2
    written = int(call.text.splitlines()[0])
    assert written > 30_000_000
    (event,) = [event for event in await outputs(session, call) if "data" in event.data]
    assert len(event.data["data"]["image/png"].replace("\n", "")) * 3 // 4 >= written
    # the call itself names what it leaves out
    assert call.result == {"text/plain": "<IPython.core.display.Image object>"}
    assert call.details["left_out"].keys() == {"image/png"}


async def test_a_decompression_bomb_is_refused_and_says_why(session: Session) -> None:
    code = NOISE + "bomb = Image(png(60_000, 60_000, bytes(50_000_000), 9))\n"
    call = await session.run(code + "display(bomb); print('after')")
    assert [part.type for part in call.content] == ["text", "resource_link"]
    lines = call.text.splitlines()
    assert lines[0] == "<IPython.core.display.Image object>"
    assert lines[1].endswith("60000 x 60000 is more than 25,000,000 pixels]")
    assert lines[2] == "after"
    call = await session.run("bomb")
    assert "60000 x 60000" in call.text


async def test_an_operator_or_a_session_makes_images_smaller(coordinator: Coordinator) -> None:
    async with coordinator.session(limits={"max_image_px": 100}) as session:
        call = await session.run(NOISE + "Image(png(400, 200, bytes(201 * 1201), 9))")
        assert call.cost.image_px == 100 * 50


async def test_an_updated_display_shows_its_last_text_in_its_place(session: Session) -> None:
    call = await session.run(
        "handle = display('0 %', display_id=True)\nprint('working')\n"
        "for n in (50, 100): handle.update(f'{n} %')\nprint('done')"
    )
    assert call.text == "'100 %'\nworking\ndone"
    types = [event.data["type"] for event in await outputs(session, call)]
    assert types.count("update_display_data") == 2
    call = await session.run("handle.update('later'); print('next')")
    assert call.text == "'later'\nnext"


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("print('gone'); display('gone'); clear_output(); print('kept')", "kept"),
        ("print('gone'); clear_output(wait=True); print('kept')", "kept"),
        ("print('stays'); clear_output(wait=True)", "stays"),
        ("print('stays'); clear_output(wait=True); 1 / 0", "stays\nTraceback"),
        ("for n in range(100): clear_output(wait=True); print('step', n)", "step 99"),
        ("print('gone'); clear_output(); 5", "=> 5"),
        ("print('gone'); clear_output()", "(no output)"),
    ],
)
async def test_clear_output_clears_for_the_model_and_the_log_keeps_everything(
    session: Session, code: str, text: str
) -> None:
    call = await session.run("from IPython.display import clear_output\n" + code)
    assert call.text.startswith(text)
    assert "gone" not in call.text
    events = await outputs(session, call)
    printed = b"".join(event.blob for event in events if event.blob is not None)
    assert len(printed) == call.output.total_bytes
    assert b"gone" in printed or "gone" not in code
    assert any(event.data["type"] == "clear_output" for event in events)


async def test_every_value_is_shown_when_the_user_wants_that(session: Session) -> None:
    await session.run("get_ipython().ast_node_interactivity = 'all'")
    assert (await session.run("1\nprint('x')\n2")).text == "=> 1\nx\n=> 2"
    assert (await session.run("a = print('x', end='')\n1\n2")).text == "x\n=> 1\n=> 2"
