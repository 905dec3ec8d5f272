"""What is too large for a result is an artefact of it, and what is shown without end is bounded."""

from __future__ import annotations

import base64
from collections.abc import Callable

from replsvc.calls import ResourceLink
from replsvc.config import Config
from replsvc.coordinator import Coordinator
from replsvc.session import Session

MakeConfig = Callable[..., Config]

BOMB = """
import base64, struct, zlib
def chunk(kind, data):
    return struct.pack('>I', len(data)) + kind + data + struct.pack('>I', zlib.crc32(kind + data))
side = 20_000
head = struct.pack('>IIBBBBB', side, side, 8, 0, 0, 0, 0)
pixels = zlib.compress(bytes((side + 1) * 1000))
chunks = chunk(b'IHDR', head) + chunk(b'IDAT', pixels) + chunk(b'IEND', b'')
png = b'\\x89PNG\\r\\n\\x1a\\n' + chunks
from IPython.display import display
display({'image/png': base64.b64encode(png).decode()}, raw=True)
"""


async def test_a_value_over_the_bound_is_linked_and_can_be_fetched_whole(
    session: Session, coordinator: Coordinator
) -> None:
    call = await session.run(
        "from IPython.display import HTML; HTML('<b>' + 'x' * 2_000_000 + '</b>')"
    )
    assert call.status == "ok"
    assert call.result is not None
    assert "text/html" not in call.result
    (one,) = call.artifacts
    assert (one.mime_type, one.source, one.kept) == ("text/html", "output", True)
    (link,) = (part for part in call.content if isinstance(part, ResourceLink))
    assert link.uri == f"/v1/sessions/{session.id}/artifacts/{one.id}"
    assert one.id in call.text
    _, path = await coordinator.artifact(session.id, one.id)
    assert path.read_text() == "<b>" + "x" * 2_000_000 + "</b>"


async def test_an_image_that_a_model_can_not_have_is_kept_as_it_came(
    session: Session, coordinator: Coordinator
) -> None:
    call = await session.run(BOMB)
    (one,) = call.artifacts
    assert (one.mime_type, one.path) == ("image/png", "output-0.png")
    assert not any(part.type == "image" for part in call.content)
    _, path = await coordinator.artifact(session.id, one.id)
    wanted = (await session.run("import hashlib; hashlib.sha256(png).hexdigest()")).text
    import hashlib

    assert hashlib.sha256(path.read_bytes()).hexdigest() in wanted


async def test_files_come_first_and_numbers_do_not_clash(session: Session) -> None:
    call = await session.run("open('f', 'w').write('x'); 'y' * 2_000_000")
    assert [(one.path, one.source) for one in call.artifacts] == [
        ("f", "file"),
        ("output-1.txt", "output"),
    ]
    assert len({one.id for one in call.artifacts}) == 2


async def test_what_there_is_no_room_for_is_listed_and_not_linked(make_config: MakeConfig) -> None:
    async with Coordinator(make_config(max_artifact_bytes=1_000)) as c, c.session() as s:
        call = await s.run("'y' * 2_000_000")
        assert [one.kept for one in call.artifacts] == [False]
        assert not any(part.type == "resource_link" for part in call.content)


async def test_displays_count_against_the_logs_bound(make_config: MakeConfig) -> None:
    async with Coordinator(make_config(max_log_bytes=100_000)) as c, c.session() as s:
        call = await s.run(
            "from IPython.display import display\n"
            "for n in range(10): display({'text/plain': 'z' * 30_000}, raw=True)\n"
            "print('after' + 'w' * 20_000)"
        )
        events = await c.log.read(s.id, call_id=call.id, kinds=["output"])
        kept = sum(len(part) for e in events for part in e.data.get("data", {}).values())
        printed = sum(len(e.blob or b"") for e in events)
        assert kept == 90_000
        assert printed == 10_000
        assert call.output.truncated
        assert call.output.dropped_bytes == 7 * 30_000 + 10_006
        assert call.output.total_bytes == 20_006
        left_out = [e.data["left_out"] for e in events if "left_out" in e.data]
        assert left_out == [{"text/plain": 30_000}] * 7


def test_base64_that_is_none_is_kept_as_text() -> None:
    from replsvc.output.oversized import Oversized

    assert Oversized("image/png", "no base64!").content() == b"no base64!"
    assert Oversized("image/png", base64.b64encode(b"x").decode()).content() == b"x"
    assert Oversized("application/json", {"a": ["é"]}).content() == '{"a": ["é"]}'.encode()
    assert Oversized("text/plain", "\udc80").content() == b"\\udc80"
