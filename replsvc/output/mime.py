"""What of a mimebundle a model reads. Every value in it is hostile. Its images: see `pictures`."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from replsvc.output.images import IMAGE_TYPES
from replsvc.output.markup import html_text, without_data

# A repr that says only which object it is: IPython's own display objects, Python's default.
_PLACEHOLDER = re.compile(
    r"<IPython\.[\w.]{1,200} object>|<[\w.<>]{1,200} (?:object )?at 0x[0-9a-f]{1,16}>"
)

_MAX_NAMED = 5


def mime_text(bundle: Mapping[str, Any]) -> str | None:
    """The bundle's text for a model, None when it has none but images, or nothing at all.

    `text/plain` where it says something; otherwise the source of Markdown, LaTeX or JSON (compact);
    otherwise the text of HTML. Where none of these says anything, `text/plain` nevertheless, and a
    line that names what is not shown. Not bounded except for HTML: `clip` is the caller's.
    """
    plain = bundle_text(bundle, "text/plain")
    if plain is not None and not _PLACEHOLDER.fullmatch(plain.strip()):
        return plain
    source = bundle_text(bundle, "text/markdown")
    if source is not None:
        return without_data(source, len(source))[0]
    for source in (bundle_text(bundle, "text/latex"), _json(bundle)):
        if source is not None:
            return source
    html = bundle_text(bundle, "text/html")
    text = html_text(html) if html is not None else ""
    if text and not text.isspace():
        return text
    if any(bundle_text(bundle, mime_type) for mime_type in IMAGE_TYPES):
        return plain
    unseen = [name for name in bundle if name != "text/plain"]
    if not unseen:
        return plain
    note = "; ".join(_described(name, bundle[name]) for name in unseen[:_MAX_NAMED])
    if len(unseen) > _MAX_NAMED:
        note += f"; {len(unseen) - _MAX_NAMED} more"
    note = f"[not shown, whole in its event: {note}]"
    return note if plain is None else f"{plain.rstrip()}\n{note}"


def bundle_text(bundle: Mapping[str, Any], mime_type: str) -> str | None:
    """A text value; nbformat allows a list of lines too."""
    value = bundle.get(mime_type)
    if isinstance(value, str):
        return value
    if isinstance(value, list) and value and all(isinstance(line, str) for line in value):
        return "".join(value)
    return None


def part_size(value: Any) -> int:
    """How much one media type's data of a bundle is, in characters of text or JSON."""
    return len(value) if isinstance(value, str) else len(json.dumps(value))


def inline(bundle: Mapping[str, Any], max_chars: int) -> tuple[Mapping[str, Any], dict[str, int]]:
    """The bundle without its parts over `max_chars` characters, and the sizes of those."""
    left_out: dict[str, int] = {}
    for mime_type, value in bundle.items():
        size = part_size(value)
        if size > max_chars:
            left_out[mime_type] = size
    if left_out:
        bundle = {name: value for name, value in bundle.items() if name not in left_out}
    return bundle, left_out


def _described(mime_type: str, value: Any) -> str:
    name = " ".join(mime_type.split())[:100]
    try:
        return f"{name}, {part_size(value):,} characters"
    except (TypeError, ValueError, RecursionError):
        return name


def _json(bundle: Mapping[str, Any]) -> str | None:
    if "application/json" not in bundle:
        return None
    try:
        return json.dumps(bundle["application/json"], ensure_ascii=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError):
        return None
