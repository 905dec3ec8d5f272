"""The example session over HTTP, as a user starts it; its transcript checked cell by cell."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
EXAMPLE = ROOT / "examples" / "data_analysis"
pytestmark = [pytest.mark.e2e, pytest.mark.needs("data")]


@pytest.fixture(scope="module")
def ready(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """`replsvc serve` with the example's two extensions; ends it and sees that it ends well."""
    directory = tmp_path_factory.mktemp("serve")
    file = directory / "ready.json"
    server = subprocess.Popen(
        [
            *(sys.executable, "-m", "replsvc", "serve", "--isolation", "none", "--port", "0"),
            *("--data", str(directory / "data"), "--ready-file", str(file)),
            *("--ext", f'{EXAMPLE / "extensions.py"}:datasets={{"max_rows": 500}}'),
            *("--ext", f"{EXAMPLE / 'extensions.py'}:house_style"),
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert server.stdout is not None
    try:
        # It says where it is once requests are answered; the ready file is written before.
        while line := server.stdout.readline():
            if line.startswith("Key"):
                break
        yield json.loads(file.read_text())
    finally:
        server.send_signal(signal.SIGTERM)
        server.stdout.close()
        assert server.wait(30) == 0


@pytest.fixture(scope="module")
def transcript(ready: dict[str, str]) -> list[tuple[object, dict[str, object]]]:
    sys.path.insert(0, str(EXAMPLE))
    try:
        import run as example
    finally:
        sys.path.remove(str(EXAMPLE))
    return example.run(ready["url"], ready["key"])  # type: ignore[no-any-return]


def test_the_session_has_at_least_25_cells(transcript: list[tuple[object, dict]]) -> None:
    assert len(transcript) >= 25


def test_every_cell_gives_what_an_agent_expects(transcript: list) -> None:
    wrong = []
    for number, (cell, call) in enumerate(transcript, 1):
        text = "\n".join(part["text"] for part in call["content"] if part["type"] == "text")
        images = [part for part in call["content"] if part["type"] == "image"]
        if call["status"] != cell.status or len(images) != cell.images:
            wrong.append((cell.title, call["status"], len(images), text))
        wrong += [
            (cell.title, pattern, text)
            for pattern in cell.expect
            if not re.search(pattern, text, re.MULTILINE)
        ]
        if call["execution_count"] != number or call["title"] != cell.title:
            wrong.append((cell.title, call["execution_count"], call["title"]))
        if call["is_error"] != (cell.status != "ok") or call["state_lost"]:
            wrong.append((cell.title, call["is_error"], call["state_lost"]))
        for leak in ("\x1b", "/IPython/", "_replsvc_guest", "replsvc_kernels"):
            if leak in text:
                wrong.append((cell.title, leak, text))
    assert wrong == []


def test_the_numbers_of_calls_rise(transcript: list) -> None:
    numbers = [call["seq"] for _, call in transcript]
    assert numbers == sorted(set(numbers))
