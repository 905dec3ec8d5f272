"""An ordinary user's sessions with ids of their own: whose files are whose, and who removes them.

Run as such a user: `nox -s unprivileged` makes one with a range of ids.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio
from outside import attempt, given

from replsvc.config import Config, Limits
from replsvc.coordinator import Coordinator
from replsvc_kernels.sandbox import namespaces

pytestmark = pytest.mark.needs("userns", "pidns", "seccomp")


@pytest.fixture
async def coordinator(tmp_path: Path) -> AsyncIterator[Coordinator]:
    if os.geteuid() == 0:
        pytest.skip("an ordinary user's: nox -s unprivileged")
    try:
        namespaces.maps_from_subordinate_ids()
    except LookupError as error:
        pytest.skip(f"an ordinary user's with a range: {error}")
    config = Config(isolation="best", data=tmp_path / "data", limits=Limits(interrupt_grace_s=0.5))
    async with Coordinator(config) as coordinator:
        yield coordinator


async def test_each_session_has_an_id_and_none_is_ours_or_another_ones(
    coordinator: Coordinator,
) -> None:
    async with coordinator.session(**given()) as one, coordinator.session(**given()) as other:
        found = [(await attempt(session, "prove"))["uid outside"] for session in (one, other)]
        assert len({*found, os.getuid()}) == 3
        missing = (await one.info()).isolation_missing
        assert not [layer for layer in missing if "user id" in layer]


async def test_files_go_both_ways_between_us_and_the_session(coordinator: Coordinator) -> None:
    files = {"given": {"text": "ours"}, "deep/given": {"text": "ours"}}
    async with coordinator.session(files=files) as session:
        work = session._parts.workspace
        call = await session.run(
            "import os\n"
            "open('given', 'a').write('+theirs'); open('deep/new', 'w').write('theirs')\n"
            "os.makedirs('made/here'); open('made/here/file', 'w').write('theirs')\n"
            "sorted(os.listdir('.')), os.stat('given').st_uid == os.getuid()"
        )
        assert call.text.endswith("=> (['deep', 'given', 'made'], True)"), call.text
        assert (work / "given").read_text() == "ours+theirs"
        assert (work / "made/here/file").stat().st_uid != os.getuid()
        assert (work / "made/here/file").read_text() == "theirs"
        (work / "made/here/file").write_text("ours again")
        (work / "made/beside").write_text("ours")
        await session.run("text = open('made/here/file').read()")
        assert (await session.run("text")).text == "=> 'ours again'"
        await session.restart()
        # Whichever id the next kernel has: all of it is its own, as is what came from us.
        call = await session.run("import os\nopen('made/beside', 'a').close(); os.listdir('made')")
        assert call.status == "ok", call.text
        # Nobody else gets as far as to where our group could read it.
        assert work.parent.stat().st_mode & 0o077 == 0


async def test_what_a_session_closed_to_us_is_removed_with_it(coordinator: Coordinator) -> None:
    async with coordinator.session(files={"a": {"text": "1"}}) as session:
        closed = (
            "import os\nos.makedirs('closed/deep'); open('closed/deep/file', 'w').close()\n"
            "for place in ('closed/deep', 'closed'): os.chmod(place, 0)\n"
            "os.chmod('.', 0o700)"
        )
        await session.run(closed)
        with pytest.raises(PermissionError):
            await trio.to_thread.run_sync(os.listdir, session._parts.workspace / "closed")
        await session.reset()
        assert (await session.run("import os; os.listdir('.')")).text == "=> ['a']"
        await session.run(closed)
    assert list(coordinator._workspaces.iterdir()) == []
