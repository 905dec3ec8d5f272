"""Marks that several files of tests share."""

from __future__ import annotations

import pytest
from sessions import HOW

from replsvc_kernels.sandbox import namespaces

NEEDED = {
    namespaces.ROOT: ("root",),
    namespaces.SINGLE: (),
    namespaces.SUBORDINATE: ("root", "newuidmap"),  # root gives a range to a user of ours
}
# As root, as a user with one id, as a user with a range of ids.
each_how = pytest.mark.parametrize(
    "how", [pytest.param(how, marks=pytest.mark.needs(*NEEDED[how])) for how in HOW]
)
