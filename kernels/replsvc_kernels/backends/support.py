"""Whether our guest runs in an environment, as the guest itself says: it keeps the versions."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path

import trio

from replsvc_kernels.kernel import LaunchError

VERSIONS = str(Path(__file__).parent.parent / "guest" / "versions.py")
ANSWER_S = 30.0


@dataclass(frozen=True, slots=True)
class Support:
    """The environment's ipykernel, if it has one, and the versions that our guest runs with."""

    ipykernel: str | None
    tested: bool
    wanted: str


async def support(python: str) -> Support:
    """Ask `python`, in a process of its own. Raises `LaunchError` when it can't say."""
    try:
        with trio.fail_after(ANSWER_S):
            done = await trio.run_process(
                [python, "-I", VERSIONS],
                capture_stdout=True,
                capture_stderr=True,
                stdin=subprocess.DEVNULL,
                check=False,
                env={"LANG": "C.UTF-8"},
            )
        said = json.loads(done.stdout)
        version = said["ipykernel"]
        return Support(
            str(version) if version is not None else None, bool(said["tested"]), str(said["wanted"])
        )
    except (OSError, ValueError, KeyError, TypeError, trio.TooSlowError) as error:
        raise LaunchError(
            f"{python} can't say which ipykernel it has: {type(error).__name__} {error}"
        ) from error
