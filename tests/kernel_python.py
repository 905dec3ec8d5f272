"""The Python that tests of kernels launch them in: ours, or `pytest --kernel-python PATH`."""

from __future__ import annotations

import sys

path = sys.executable
