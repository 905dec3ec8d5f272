"""An environment whose ipykernel says that it is another version than it is."""

from __future__ import annotations

import importlib.metadata
import re
import shutil
import subprocess
import sys
from pathlib import Path

import ipykernel

VERSION = "6.28.9"


def environment(path: Path) -> str:
    """Make it at `path`, which is not there yet; its Python.

    It has our packages, and in front of them an ipykernel renamed. Sessions' users can read it.
    """
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(path)], check=True)
    (site,) = path.glob("lib/python3*/site-packages")
    ours = Path(ipykernel.__file__).parent
    shutil.copytree(ours, site / ours.name, ignore=shutil.ignore_patterns("__pycache__"))
    real = importlib.metadata.version("ipykernel")
    version = site / ours.name / "_version.py"
    text = version.read_text(encoding="utf-8")
    assert f'"{real}"' in text
    version.write_text(text.replace(f'"{real}"', f'"{VERSION}"'), encoding="utf-8")
    described = site / f"ipykernel-{VERSION}.dist-info"
    described.mkdir()
    metadata = re.sub(r"(?m)^Version: .*$", f"Version: {VERSION}", _metadata())
    (described / "METADATA").write_text(metadata, encoding="utf-8")
    (site / "rest.pth").write_text(f"{ours.parent}\n", encoding="utf-8")
    return str(path / "bin" / "python")


def _metadata() -> str:
    text = importlib.metadata.distribution("ipykernel").read_text("METADATA")
    assert text is not None
    return text
