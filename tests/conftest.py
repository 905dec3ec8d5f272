"""For all tests: components they need, what they must not leave behind, lines run inside kernels.

With `TESTS_REQUIRE_COMPONENTS=1` (continuous integration) a test that is skipped because a
component is missing fails instead; `TESTS_REQUIRE_COMPONENTS=userns,git` says so of some. It is not
called REPLSVC_*: those are settings.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest

import components
import kernel_python
import leftovers

REQUIRE = "TESTS_REQUIRE_COMPONENTS"
SKIPPED = "needs "

temporary = pytest.StashKey[Path]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Say which Python the kernels of tests run in."""
    parser.addoption(
        "--kernel-python",
        metavar="PATH",
        default=kernel_python.path,
        help="the Python, with an ipykernel of its own, that tests/kernels runs kernels in",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Give this run a temporary directory of its own; pytest's own stays where it was."""
    kernel_python.path = config.getoption("--kernel-python")
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())
    # Short, because unix sockets are made in it.
    directory = config.stash[temporary] = Path(tempfile.mkdtemp(prefix="rt-"))
    os.environ["TMPDIR"] = tempfile.tempdir = str(directory)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Remove it."""
    shutil.rmtree(config.stash[temporary], ignore_errors=True)


# Components


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Refuse components that nobody can probe: a typing error must not skip a test for ever."""
    for item in items:
        for mark in item.iter_markers("needs"):
            if unknown := set(mark.args) - components.PROBES.keys():
                raise pytest.UsageError(
                    f"{item.nodeid} needs {', '.join(sorted(unknown))}: unknown; "
                    f"tests/components.py knows {', '.join(sorted(components.PROBES))}"
                )


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test whose component is missing, with the reason."""
    for mark in item.iter_markers("needs"):
        for component in mark.args:
            if (reason := components.missing(component)) is not None:
                pytest.skip(f"{SKIPPED}{component}: {reason}")


def _missing(report: pytest.TestReport) -> str | None:
    """Why a test was skipped, when that is a missing component."""
    if not report.skipped or not isinstance(report.longrepr, tuple):
        return None
    reason = report.longrepr[2].removeprefix("Skipped: ")
    return reason if reason.startswith(SKIPPED) else None


def _required(reason: str) -> bool:
    required = os.environ.get(REQUIRE, "")
    component = reason.removeprefix(SKIPPED).partition(":")[0]
    return required == "1" or component in required.split(",")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Where every component is required, its absence is a failure."""
    report = yield
    if (reason := _missing(report)) is not None and _required(reason):
        report.outcome, report.longrepr = "failed", f"{reason} ({REQUIRE} is set)"
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Count the tests that were skipped because a component is missing."""
    reasons = Counter(
        reason
        for report in terminalreporter.stats.get("skipped", [])
        if (reason := _missing(report)) is not None
    )
    if reasons:
        terminalreporter.section("missing components")
        terminalreporter.line(f"{reasons.total()} tests skipped for missing components:")
        for reason, count in sorted(reasons.items()):
            terminalreporter.line(f"  {count} {reason.removeprefix(SKIPPED)}")


# Leftovers


@pytest.fixture(autouse=True)
def leaves_nothing_behind(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    """Fail a test that leaves a process or a directory of ours; torn down after all else of it."""
    directory = request.config.stash[temporary]
    before = leftovers.snapshot(directory)
    yield
    if left := leftovers.left_since(before, directory, [tmp_path_factory.getbasetemp()]):
        pytest.fail("left behind:\n" + "\n".join(left), pytrace=False)


# Mounts


@pytest.fixture
def mount() -> Iterator[Callable[..., None]]:
    """Call with mount(8)'s arguments, the last one the directory; unmounted at the end."""
    mounted: list[str] = []

    def call(*arguments: str) -> None:
        done = subprocess.run(["mount", *arguments], capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"needs the right to mount: {done.stderr.strip()}")
        if "remount" not in " ".join(arguments):
            mounted.append(arguments[-1])

    yield call
    for directory in reversed(mounted):
        subprocess.run(["umount", directory], check=True)
