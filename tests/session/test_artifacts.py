"""Files that cells make: listed on the result, kept beyond the session, hostile or not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from replsvc.config import Config
from replsvc.coordinator import Coordinator
from replsvc.errors import ArtifactNotFoundError, SessionNotFoundError
from replsvc.session import Session

MakeConfig = Callable[..., Config]


async def test_a_cell_lists_what_it_made_and_changed(coordinator: Coordinator) -> None:
    async with coordinator.session(files={"in.txt": {"text": "x"}, "other": {"text": "y"}}) as s:
        call = await s.run(
            "import os; os.mkdir('d')\n"
            "open('d/table.csv', 'w').write('a,b')\n"
            "open('in.txt', 'a').write('z')"
        )
        found = {one.path: one for one in call.artifacts}
        assert set(found) == {"d/table.csv", "in.txt"}
        assert (found["d/table.csv"].mime_type, found["d/table.csv"].size) == ("text/csv", 3)
        assert call.artifacts_complete
        _, path = await coordinator.artifact(s.id, found["in.txt"].id)
        assert path.read_text() == "xz"
        assert (await s.run("1")).artifacts == ()


async def test_an_artefact_is_as_it_was_at_its_cells_end_and_outlives_the_session(
    coordinator: Coordinator,
) -> None:
    async with coordinator.session() as s:
        first = await s.run("open('a', 'w').write('one')")
        second = await s.run("open('a', 'w').write('two')")
    contents = [
        (await coordinator.artifact(s.id, call.artifacts[0].id))[1].read_text()
        for call in (first, second)
    ]
    assert contents == ["one", "two"]


async def test_setup_code_and_given_files_are_no_cells(coordinator: Coordinator) -> None:
    from replsvc import Extension

    made = Extension(code="open('from_setup', 'w').write('x')", description="")
    async with coordinator.session(extensions=[made], files={"given": {"text": "y"}}) as s:
        assert (await s.run("1")).artifacts == ()


async def test_a_cell_that_was_killed_keeps_what_it_had_written(session: Session) -> None:
    call = await session.run("import os; open('a', 'w').write('x'); os._exit(3)")
    assert call.status == "killed"
    assert [one.path for one in call.artifacts] == ["a"]


async def test_after_a_reset_the_new_workspace_is_looked_at(session: Session) -> None:
    await session.run("open('a', 'w').write('x')")
    await session.reset()
    assert (await session.run("1")).artifacts == ()
    call = await session.run("open('b', 'w').write('x')")
    assert [one.path for one in call.artifacts] == ["b"]


async def test_a_background_process_writes_into_the_next_result(session: Session) -> None:
    await session.run(
        "import os, threading\n"
        "go = threading.Event()\n"
        "def write():\n"
        "    go.wait(); open('late', 'w').write('x')\n"
        "worker = threading.Thread(target=write); worker.start()"
    )
    call = await session.run("go.set(); worker.join()")
    assert [one.path for one in call.artifacts] == ["late"]


async def test_too_many_and_too_large_are_bounded_and_said(
    make_config: MakeConfig,
) -> None:
    config = make_config(max_artifacts=5, max_artifact_bytes=1_000)
    async with Coordinator(config) as coordinator, coordinator.session() as s:
        call = await s.run("for n in range(9): open(f'f{n}', 'w').write('x')")
        assert len(call.artifacts) == 5
        assert not call.artifacts_complete
        call = await s.run(
            "open('a_large', 'wb').write(bytes(1_001)); open('b_small', 'wb').write(bytes(999))\n"
            "open('c_second', 'wb').write(bytes(2)); open('d_sparse', 'wb').truncate(2**29)"
        )
        kept = {one.path: (one.size, one.kept) for one in call.artifacts}
        assert kept == {
            "a_large": (1_001, False),
            "b_small": (999, True),
            "c_second": (2, False),
            "d_sparse": (2**29, False),
        }
        large = next(one for one in call.artifacts if one.path == "a_large")
        with pytest.raises(ArtifactNotFoundError):
            await coordinator.artifact(s.id, large.id)


async def test_none_are_looked_for_where_the_limit_is_zero(
    make_config: MakeConfig,
) -> None:
    async with Coordinator(make_config(max_artifacts=0)) as c, c.session() as s:
        call = await s.run("open('a', 'w').write('x')")
        assert (call.artifacts, call.artifacts_complete) == ((), True)


async def test_what_is_no_file_of_the_workspace_is_never_read(
    session: Session, coordinator: Coordinator, tmp_path: Path
) -> None:
    (tmp_path / "key").write_text("secret")
    call = await session.run(
        "import os\n"
        f"os.symlink({str(tmp_path / 'key')!r}, 'link'); os.symlink('/etc', 'etc')\n"
        "os.mkfifo('pipe'); open('real', 'w').write('x')"
    )
    assert [one.path for one in call.artifacts] == ["real"]
    for name in (f"{call.id}.1", f"{call.id}.-1", f"{call.id}.", f"{call.id}", "../x.0", "x"):
        with pytest.raises(ArtifactNotFoundError):
            await coordinator.artifact(session.id, name)


async def test_an_artefact_of_nobody_is_not_found(coordinator: Coordinator) -> None:
    with pytest.raises(SessionNotFoundError):
        await coordinator.artifact("s_unknown", "c.0")


async def test_odd_names_are_shown_escaped(session: Session, coordinator: Coordinator) -> None:
    call = await session.run(r"open(b'\xff\n', 'w').write('x'); open('\u00e9', 'w').write('y')")
    assert [one.path for one in call.artifacts] == ["é", "\\xff\n"]
    _, path = await coordinator.artifact(session.id, call.artifacts[1].id)
    assert path.read_text() == "x"


async def test_a_secret_in_a_name_is_redacted(coordinator: Coordinator) -> None:
    from replsvc import Secret, quote

    def body(token: str) -> None:
        pass

    class Keyed:
        @staticmethod
        def code(opts: object) -> object:
            return quote(body, token=Secret("hunter2-hunter2"))

        @staticmethod
        def description(opts: object) -> str:
            return ""

    async with coordinator.session(extensions=[(Keyed, {})]) as s:
        call = await s.run("open('hunter2-hunter2.txt', 'w').write('x')")
        assert len(call.artifacts) == 1
        assert "hunter2" not in call.model_dump_json(include={"artifacts"})


async def test_what_a_new_kernel_is_given_has_not_changed(session: Session) -> None:
    await session.run("import os; os.mkdir('d'); open('d/gone', 'w'); open('kept', 'w').write('x')")
    await session.restart()
    assert (await session.run("import shutil; shutil.rmtree('d')")).artifacts == ()
