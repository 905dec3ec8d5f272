"""Run one function of a file of attempts in a process of its own, and get what it found."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
RUN = """
import json, sys
sys.path.insert(0, sys.argv[1])
module, name, arguments = json.loads(sys.argv[2])
found = getattr(__import__(module), name)(*arguments)
print(json.dumps(found), flush=True)
"""


@dataclass(frozen=True)
class Ended:
    """How the process ended, when not by returning."""

    status: int  # negative: the signal
    stderr: str


def ending(module: str, name: str, *arguments: Any, timeout_s: float = 60.0) -> Any:
    """What `module.name(*arguments)` returned, or `Ended`."""
    command = [sys.executable, "-c", RUN, str(HERE), json.dumps([module, name, arguments])]
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout_s
    )
    if done.returncode != 0:
        return Ended(done.returncode, done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def found(module: str, name: str, *arguments: Any, timeout_s: float = 60.0) -> Any:
    """What `module.name(*arguments)` returned; fails with its traceback."""
    result = ending(module, name, *arguments, timeout_s=timeout_s)
    assert not isinstance(result, Ended), f"status {result.status}\n{result.stderr}"
    return result
