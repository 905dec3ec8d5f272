"""What a model sees of one call, as it grows: text, displays that may change, images, the value."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from replsvc.calls import Keep
from replsvc.output.images import ImageType
from replsvc.output.mime import mime_text
from replsvc.output.pictures import MAX_IMAGES, Album, Picture, candidates
from replsvc.output.view import ModelView, View, clip

MAX_PLACES = 100
"""Displays of one call that may change later; what comes after them stays as it came."""


class Page:
    """Takes a call's outputs in their order; bounded, whatever they are.

    A display with an id is replaced by its updates, wherever it stands; an update of another call's
    display is a display of this one. `clear` takes back everything before it. A picture leaves
    nothing in the text, unless a model can't have it. Calls must not overlap; `develop` may run in
    another thread.
    """

    def __init__(self, max_bytes: int, max_lines: int, keep: Keep) -> None:
        self._view = ModelView(max_bytes, max_lines, keep)
        self._clip = (max_bytes, max_lines)
        self._keep: Keep = keep
        self._clearing = False
        self._places = 0
        self._ids: dict[str, int] = {}
        self._texts: dict[int, str] = {}  # what a picture's place shows if a model can't have it
        self._album = Album()
        self._developed: dict[int, Picture] = {}
        self._value_place: int | None = None
        self._value_starts = True
        self.value: Mapping[str, Any] | None = None
        self._notes: list[str] = []
        self.unshown: list[tuple[ImageType, str]] = []
        """Images that a model can't have, once developed: type and base64."""

    def write(self, name: str, data: bytes) -> None:
        """Add what the stream `name` wrote."""
        self._turn_over()
        self._view.feed(name, data)

    def clear(self, *, wait: bool) -> None:
        """Take back what was shown; with `wait` only when something follows."""
        self._clearing = True
        if not wait:
            self._turn_over()

    def show(
        self, bundle: Mapping[str, Any], display_id: str | None = None, *, update: bool = False
    ) -> None:
        """Show a mimebundle, or with `update` change what `display_id` shows."""
        place = self._ids.get(display_id) if display_id is not None else None
        if update and place is not None:
            self._fill(place, bundle)
            return
        self._turn_over()
        has_images = bool(candidates(bundle))
        if place is None and (has_images or display_id is not None):
            place = self._new_place()
        if place is None:
            self._print(mime_text(bundle))
            return
        if display_id is not None:
            self._ids[display_id] = place
        self._view.place(place)
        self._fill(place, bundle)

    def set_value(self, bundle: Mapping[str, Any]) -> None:
        """Take the value of an expression; the last one is the call's, others are shown."""
        self._turn_over()
        if self.value is not None:
            self._show_earlier(self.value)
        self.value = bundle
        self._value_place, self._value_starts = self._new_place(), self._view.at_line_start
        if self._value_place is not None:
            self._view.place(self._value_place, own_line=False)
            if images := candidates(bundle):
                self._album.put(self._value_place, images)

    def is_slow(self, max_px: int) -> bool:
        """Whether `develop` takes long enough to need a thread of its own."""
        return self._album.is_slow(max_px)

    def develop(self, max_px: int) -> None:
        """Make the images fit for a model, their longer side at most `max_px` pixels."""
        self._notes.clear()
        self._developed.clear()
        self.unshown.clear()
        for place, picture in self._album.fit(max_px).items():
            if isinstance(picture, Picture):
                self._developed[place] = picture
                continue
            self.unshown.append(self._album.images(place)[0])
            if place == self._value_place:
                self._notes.append(str(picture).strip("[]"))
            else:
                self._view.fill(place, f"{self._texts.get(place, '')}\n{picture}".lstrip("\n"))
        if self._album.left_out:
            self._notes.append(
                f"{self._album.left_out} more images are not shown: "
                f"a result has at most {MAX_IMAGES}, of bounded size"
            )

    @property
    def pictures(self) -> tuple[Picture, ...]:
        """The images, once developed, in the order of their places."""
        return tuple(self._developed.values())

    @property
    def notes(self) -> tuple[str, ...]:
        """What to say of images that are not there, once developed."""
        return tuple(self._notes)

    def render(self, where: str) -> View:
        """The text so far; `where` says where the rest is."""
        return self._view.render(where)

    def _turn_over(self) -> None:
        if not self._clearing:
            return
        self._clearing = False
        self._view.clear()
        self._album.clear()
        self._ids.clear()
        self._texts.clear()
        self.value = None

    def _show_earlier(self, value: Mapping[str, Any]) -> None:
        text = f"=> {mime_text(value) or ''}"
        if self._value_place is None:
            self._print(text)
            return
        text = clip(text, *self._clip, keep=self._keep).text
        self._view.fill(self._value_place, text if self._value_starts else f"\n{text}")

    def _new_place(self) -> int | None:
        if self._places >= MAX_PLACES:
            return None
        self._places += 1
        return self._places

    def _fill(self, place: int, bundle: Mapping[str, Any]) -> None:
        text = clip(mime_text(bundle) or "", *self._clip, keep=self._keep).text
        images = candidates(bundle)
        if images and self._album.put(place, images):
            self._texts[place] = text
            text = ""
        else:
            self._album.remove(place)
        self._view.fill(place, text)

    def _print(self, text: str | None) -> None:
        if text is not None:
            self._view.start_line()
            self._view.feed("display", text.encode("utf-8", "backslashreplace") + b"\n")
