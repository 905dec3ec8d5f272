"""What makes a forked process one session's: its variables, and chance that nobody else has."""

from __future__ import annotations

import os
import random
import sys
import tempfile
from typing import Any


def adopt(session: dict[str, Any]) -> None:
    """A kernel that waited unused is given to a session, whose workspace is mounted by now."""
    directory = str(session["cwd"])
    # What stood there before has another content by the same name.
    sys.path_importer_cache.pop(directory, None)
    os.chdir(directory)
    adopt_environment(session["env"])


def adopt_environment(env: dict[str, str]) -> None:
    """Have these variables and no others, and random numbers of our own."""
    os.environ.clear()
    os.environ.update(env)
    # Chosen before the fork, and not this session's.
    tempfile.tempdir = None
    tempfile.__dict__["_name_sequence"] = None
    random.seed()
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed()
    processes = sys.modules.get("multiprocessing.process")
    if processes is not None:
        processes.current_process().authkey = os.urandom(32)
