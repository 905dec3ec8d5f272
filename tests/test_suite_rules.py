"""The rules that tests/conftest.py holds every test to."""

from __future__ import annotations

from pathlib import Path

import pytest

TESTS = Path(__file__).parent
NEEDS = """
import components, pytest
components.PROBES["moonlight"] = lambda: "it is day"
@pytest.mark.needs("{0}")
def test_at_night(): raise AssertionError
"""


@pytest.fixture
def inner(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A directory of tests under the same rules; run it with `runpytest_subprocess`."""
    monkeypatch.delenv("TESTS_REQUIRE_COMPONENTS", raising=False)
    monkeypatch.setenv("PYTHONPATH", str(TESTS))
    pytester.makeconftest((TESTS / "conftest.py").read_text(encoding="utf-8"))
    pytester.makeini("[pytest]\nmarkers = needs(component): see conftest\n")
    return pytester


def test_a_test_that_leaves_a_process_fails_and_the_process_is_ended(
    inner: pytest.Pytester,
) -> None:
    inner.makepyfile("""
        import os, subprocess

        def test_careless(tmp_path):
            # Its parent ends at once: only its environment says whose it is.
            command = "sleep 1000 & echo $! > pid"
            subprocess.run(command, shell=True, cwd=tmp_path, env={"HOME": str(tmp_path)})
            global kept
            kept = os.pidfd_open(int((tmp_path / "pid").read_text()))

        def test_next():
            import select
            assert select.select([kept], [], [], 60)[0], "it lives on"
    """)
    result = inner.runpytest_subprocess()
    result.assert_outcomes(passed=2, errors=1)
    result.stdout.fnmatch_lines(["left behind:", "process *: *sleep 1000*"])


def test_a_test_that_leaves_a_child_unwaited_fails(inner: pytest.Pytester) -> None:
    inner.makepyfile("""
        import os

        def test_careless():
            if (pid := os.fork()) == 0:
                os._exit(0)
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    """)
    result = inner.runpytest_subprocess()
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(["process *: ended, but nobody waited for it"])


def test_a_test_that_leaves_a_runtime_directory_fails(inner: pytest.Pytester) -> None:
    inner.makepyfile("""
        import tempfile

        def test_careless():
            tempfile.mkdtemp(prefix="replsvc-")

        def test_next(): pass
    """)
    result = inner.runpytest_subprocess()
    result.assert_outcomes(passed=2, errors=1)
    result.stdout.fnmatch_lines(["directory */replsvc-*"])


def test_a_missing_component_skips_with_its_reason_and_is_counted(inner: pytest.Pytester) -> None:
    inner.makepyfile(NEEDS.format("moonlight"))
    result = inner.runpytest_subprocess()
    result.assert_outcomes(skipped=1)
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(
        ["1 tests skipped for missing components:", "  1 moonlight: it is day"]
    )


def test_a_missing_component_fails_where_every_component_is_required(
    inner: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TESTS_REQUIRE_COMPONENTS", "1")
    inner.makepyfile(NEEDS.format("moonlight"))
    result = inner.runpytest_subprocess()
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["*needs moonlight: it is day*"])


def test_a_misspelt_component_stops_the_run(inner: pytest.Pytester) -> None:
    inner.makepyfile(NEEDS.format("moonlite"))
    result = inner.runpytest_subprocess()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*needs moonlite: unknown*moonlight*"])
