"""What continuous integration runs: `nox` runs it all, `nox -s lint` one session.

Each session makes an environment of its own from requirements-dev.lock; with `nox --no-venv` all of
them use the environment that nox runs in, which then must have been made from it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

import nox

nox.needs_version = ">=2025.2.9"
nox.options.sessions = ["lint", "typing", "tests", "older", "unprivileged", "e2e"]
nox.options.reuse_existing_virtualenvs = True
nox.options.stop_on_first_error = False

SOURCES = ("replsvc", "kernels", "extensions", "tests", "benchmarks", "examples", "docs")
WITH_IDS = ("isolation", "attacks", "subordinate_ids", "limits", "survival")
WITHOUT_IDS = (
    "session/test_limits_and_deaths", "session/test_isolated_service",
    "kernels/test_forkserver", "kernels/test_contract", "kernels/test_holder",
)  # fmt: skip
# Two runs of pytest take about as long as the longer of them.
FIRST_HALF = ("tests/session", "tests/sandbox", "tests/store", "tests/cases")
# What an ordinary user can have.
ORDINARY = "cgroups,landlock,pidns,seccomp,userns"
# A developer's index, mirrors and local wheels must not decide what is locked.
PLAIN_PIP = {
    "PIP_CONFIG_FILE": os.devnull,
    "PIP_FIND_LINKS": "",
    "PIP_EXTRA_INDEX_URL": "",
    "CUSTOM_COMPILE_COMMAND": "nox -s lock",
}


def prepare(session: nox.Session) -> Path:
    """Install the locked environment and the project; returns the directory of its commands."""
    if session.venv_backend == "none":
        return Path(sys.executable).parent
    session.install("--require-hashes", "-r", "requirements-dev.lock")
    session.install("--no-deps", "-e", ".")
    return Path(session.bin)


def run(
    session: nox.Session, command: Path | str, *args: str, env: dict[str, str] | None = None
) -> None:
    """Run a command of the prepared environment, whatever PATH says."""
    session.run(str(command), *args, env=env, external=True)


def together(
    session: nox.Session, first: list[str], second: list[str], env: dict[str, str] | None = None
) -> None:
    """Run two commands at once: tests wait more than they compute. The second is printed last."""
    with tempfile.TemporaryFile() as said:
        other = subprocess.Popen(  # noqa: S603 - our own command
            second,
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            env={**os.environ, **(env or {})},
        )
        try:
            session.run(*first, env=env, external=True)
        finally:
            code = other.wait()
            said.seek(0)
            print(*second, said.read().decode(errors="replace"), sep="\n", flush=True)
    if code:
        session.error(f"{second} ended with {code}")


@nox.session
def lint(session: nox.Session) -> None:
    """Style, formatting, and the direction of every import."""
    commands = prepare(session)
    present = [name for name in SOURCES if Path(name).exists()]
    run(session, commands / "ruff", "check", "noxfile.py", *present)
    run(session, commands / "ruff", "format", "--check", "noxfile.py", *present)
    run(session, commands / "lint-imports", "--no-cache")


@nox.session
def typing(session: nox.Session) -> None:
    """Types, strictly."""
    run(session, prepare(session) / "mypy")


@nox.session
def tests(session: nox.Session) -> None:
    """All tests but the end-to-end ones, counting lines here and inside kernels.

    `nox -s tests -- ARGS` hands ARGS to pytest.
    """
    python = str(prepare(session) / "python")
    tests = [python, "-m", "coverage", "run", "-m", "pytest", "-m", "not e2e"]
    run(session, python, "-m", "coverage", "erase")
    try:
        if session.posargs:
            run(session, *tests, *session.posargs)
        else:
            ignored = [f"--ignore={directory}" for directory in FIRST_HALF]
            together(session, [*tests, *FIRST_HALF], [*tests, *ignored])
    finally:
        run(session, python, "-m", "coverage", "combine", "--quiet")
    if not session.posargs:
        run(session, python, "-m", "coverage", "report")


@nox.session
def unprivileged(session: nox.Session) -> None:
    """What isolates, limits and is attacked once more, as a user who owns nothing.

    Twice: with subordinate ids and without. Root gives the user these and a part of the control
    groups; whoever is not root runs the tests as they are.
    """
    python = str(prepare(session) / "python")
    # Those of tests for each kind of kernel that are about isolated ones.
    others = ("plain", "process]", "fake]", "provisioner]", "stock]", "-none]")
    chosen = " and ".join(f"not {one}" for one in others)
    tests = [python, "-m", "pytest", "-k", chosen]
    with_ids = [f"tests/session/test_{name}.py" for name in WITH_IDS]
    without = [*with_ids, *(f"tests/{name}.py" for name in WITHOUT_IDS)]
    if os.geteuid() != 0:
        run(session, *tests, *(session.posargs or without))
        return
    required = os.environ.get("TESTS_REQUIRE_COMPONENTS") == "1"
    env = {"TESTS_REQUIRE_COMPONENTS": ORDINARY if required else ""}
    as_user = [python, "tests/session/as_user.py", "--groups", "--directory", str(Path.cwd())]
    together(
        session,
        [*as_user, "--range", *tests, *(session.posargs or with_ids)],
        [*as_user, *tests, *(session.posargs or without)],
        env,
    )


@nox.session
def e2e(session: nox.Session) -> None:
    """The installed commands, driven as a user drives them."""
    python = prepare(session) / "python"
    run(session, python, "-m", "pytest", "-m", "e2e", *session.posargs)


# Our guest's versions of ipykernel (guest/versions.py), the oldest with the IPython of its time.
MATRIX = {
    "6.29": ("ipykernel==6.29.*", "ipython==8.*"),
    "7.1": ("ipykernel==7.1.*",),
    "newest": ("ipykernel",),
}
OLDER = ("6.29", "7.1")
GUEST_TESTS = ("guest", "test_conformance.py", "test_jupyter_client.py")
MATRIX_TESTS = (*GUEST_TESTS, "test_contract.py")
# No matter of versions: a kernel without our guest, descriptors and children, our files' syntax.
LEFT_OUT = (
    "--deselect", "tests/kernels/test_conformance.py::TestStock",
    "--ignore", "tests/kernels/guest/test_guest_processes.py",
    "--ignore", "tests/kernels/guest/test_guest_portability.py",
)  # fmt: skip
# What cells of the tests import.
IN_CELLS = ("anyio", "matplotlib", "trio")


def with_ipykernel(session: nox.Session, version: str, *args: str) -> None:
    """Run pytest with `args`, kernels being those of an environment that has nothing of ours."""
    python = prepare(session) / "python"
    place = Path(session.create_tmp()).resolve() / version
    theirs = place / "bin" / "python"
    wanted = (*MATRIX[version], *IN_CELLS)
    run(session, python, "-m", "venv", "--clear", str(place))
    try:
        run(session, theirs, "-m", "pip", "install", "--quiet", *wanted)
    except nox.command.CommandFailed:
        session.error(
            f"these tests need an environment with {' '.join(wanted)}, and pip could not install "
            f"that: see what it says above. It needs a package index, from the network or as pip "
            f"is configured. `nox -s` runs the sessions that you name, without this one"
        )
    run(session, python, "-m", "pytest", f"--kernel-python={theirs}", *args)


@nox.session
def older(session: nox.Session) -> None:
    """Jupyter's conformance suite and the guest's tests with older versions of ipykernel.

    `nox -s older -- ARGS` hands ARGS to pytest.
    """
    tests = [*LEFT_OUT, *(f"tests/kernels/{name}" for name in GUEST_TESTS)]
    for version in OLDER:
        with_ipykernel(session, version, *(session.posargs or tests))


@nox.session
@nox.parametrize("version", list(MATRIX))
def matrix(session: nox.Session, version: str) -> None:
    """All tests of kernels with each version of ipykernel.

    `nox -s "matrix(version='7.1')" -- ARGS` hands ARGS to pytest.
    """
    tests = [f"tests/kernels/{name}" for name in MATRIX_TESTS]
    with_ipykernel(session, version, *(session.posargs or tests))


@nox.session
def docs(session: nox.Session) -> None:
    """Write what is generated in docs/ anew."""
    run(session, prepare(session) / "python", "docs/defaults.py")


@nox.session(python="3.11")
def lock(session: nox.Session) -> None:
    """Lock what the oldest supported Python gets; the same pins serve the newer ones.

    `nox -s lock -- --upgrade` takes newer releases, without it only what changed moves.
    """
    session.install("pip-tools>=7.4")
    options = (
        "--generate-hashes", "--strip-extras", "--allow-unsafe", "--quiet",
        "--no-emit-index-url", "--no-emit-find-links", "--no-emit-trusted-host",
        *session.posargs,
    )  # fmt: skip
    session.run("pip-compile", *options, "-o", "requirements.lock", "pyproject.toml", env=PLAIN_PIP)
    project = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))
    groups = Path(session.create_tmp()) / "development.in"
    groups.write_text("\n".join(nox.project.dependency_groups(project, "dev")), encoding="utf-8")
    session.run(
        "pip-compile", *options, "--extra", "data", "-c", "requirements.lock", "--no-annotate",
        "-o", "requirements-dev.lock", "pyproject.toml", str(groups), env=PLAIN_PIP,
    )  # fmt: skip
