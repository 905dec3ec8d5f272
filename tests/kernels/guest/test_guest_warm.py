"""What a fork server runs before it forks goes through, and leaves nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

GUEST = Path(__file__).parents[3] / "kernels" / "replsvc_kernels" / "guest"
PYTHON = os.environ.get("REPLSVC_TEST_GUEST_PYTHON", sys.executable)

PROGRAM = f"""
import importlib.util, json, os, sys
directory, sys.argv = {str(GUEST)!r}, [""]
spec = importlib.util.spec_from_file_location(
    "_replsvc_guest", directory + "/__init__.py", submodule_search_locations=[directory]
)
sys.modules["_replsvc_guest"] = module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
from _replsvc_guest import app, warm
guest = app.build()
descriptors = os.listdir("/proc/self/fd")
complaints = warm.warm(guest)
print(json.dumps({{
    "complaints": complaints,
    "descriptors": len(os.listdir("/proc/self/fd")) - len(descriptors),
    "threads": len(os.listdir("/proc/self/task")),
    "names": [n for n in guest.kernel.shell.user_ns if not n.startswith("_")],
}}))
"""


def test_the_cells_that_warm_a_server_go_through_and_leave_nothing() -> None:
    done = subprocess.run(
        [PYTHON, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=60
    )
    found = json.loads(done.stdout)
    assert found.pop("complaints") == []
    names = found.pop("names")
    assert found == {"descriptors": 0, "threads": 1}
    assert "x" not in names
