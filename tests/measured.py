"""Coverage inside kernels, which inherit no variables: a test run declares coverage's own."""

from __future__ import annotations

import os

VARIABLE = "COVERAGE_PROCESS_CONFIG"


def variables() -> dict[str, str]:
    """What a process needs in its environment to be measured; empty when nothing is measured.

    Its Python must be the one that runs the tests: that has coverage's start-up file.
    """
    return {VARIABLE: os.environ[VARIABLE]} if VARIABLE in os.environ else {}
