"""Removing as an ordinary user, in a process of its own."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from sessions import FIRST, attempted, become_user, directory, forked, give_user_a_range

from replsvc_kernels.sandbox import removal


def _left(place: Path) -> str:
    return "left" if place.exists() else "gone"


def without_rights() -> Any:
    def remove() -> Any:
        become_user()
        with directory() as home:
            place = home / "place"
            for name in ("a/b/c", "a/d", "e"):
                (place / name).mkdir(parents=True)
            (place / "a/b/c/file").write_text("x")
            for name in ("a/b/c", "a/b", "a", "e", "."):
                (place / name).chmod(0)
            removal.remove(str(place))
            return _left(place)

    return forked(remove)


def _owned_by(user: int, place: Path) -> None:
    for name in ("theirs", "theirs/deep"):
        (place / name).mkdir()
    (place / "theirs/deep/file").write_text("x")
    for name in ("theirs/deep/file", "theirs/deep", "theirs"):
        os.chown(place / name, user, user)


def of_a_sessions_user() -> Any:
    def remove() -> Any:
        give_user_a_range()
        with directory() as home:
            place = home / "place"
            place.mkdir()
            _owned_by(FIRST + 5, place)
            for path in (home, place):
                os.chown(path, 64_321, 64_321)

            def as_user() -> Any:
                become_user()
                before = attempted(lambda: os.unlink(place / "theirs/deep/file"))
                forked(lambda: removal.main(str(place)))
                return [before, _left(place)]

            return forked(as_user)

    return forked(remove)


def of_somebody_else() -> Any:
    def remove() -> Any:
        with directory() as home:
            place = home / "place"
            place.mkdir()
            _owned_by(12_345, place)
            for number in range(20):
                (place / str(number) / "in").mkdir(parents=True)
            for path in (home, place, *place.glob("[0-9]*"), *place.glob("[0-9]*/in")):
                os.chown(path, 64_321, 64_321)

            def as_user() -> Any:
                become_user()
                said = attempted(lambda: removal.remove(str(place)))
                return [said, sorted(os.listdir(place))]

            return forked(as_user)

    return forked(remove)
