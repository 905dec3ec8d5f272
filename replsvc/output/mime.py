"""What of a mimebundle a model gets: a text, an image, or both. Every value in it is hostile."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from replsvc.output.images import IMAGE_TYPES, ImageType, decode_base64, sniff
from replsvc.output.markup import html_text

MAX_IMAGE_BYTES = 5 * 1024 * 1024
"""Default bound of a decoded image."""

# IPython's own display objects have no text of their own: their repr says only which they are.
_PLACEHOLDER = re.compile(r"<IPython\.[\w.]{1,200} object>")


def mime_text(bundle: Mapping[str, Any]) -> str | None:
    """The bundle's text for a model, None when it has none.

    `text/plain` where it says something; otherwise the source of Markdown, LaTeX or JSON (compact);
    otherwise the text of HTML. Not bounded except for HTML: `clip` is the caller's.
    """
    plain = _text(bundle, "text/plain")
    if plain is not None and not _PLACEHOLDER.fullmatch(plain.strip()):
        return plain
    for mime_type in ("text/markdown", "text/latex"):
        source = _text(bundle, mime_type)
        if source is not None:
            return source
    source = _json(bundle)
    if source is not None:
        return source
    html = _text(bundle, "text/html")
    if html is not None:
        return html_text(html)
    return plain


def mime_image(
    bundle: Mapping[str, Any], max_bytes: int = MAX_IMAGE_BYTES
) -> tuple[ImageType, str] | None:
    """The bundle's first image that a model can take: its type and its base64 on one line.

    None when there is none that is strict base64 of an image of the type it claims, in at most
    `max_bytes` decoded bytes.
    """
    for mime_type in IMAGE_TYPES:
        encoded = _text(bundle, mime_type)
        if encoded is None:
            continue
        data = decode_base64(encoded, max_bytes)
        if data is not None and sniff(data) == mime_type:
            return mime_type, "".join(encoded.split())
    return None


def _text(bundle: Mapping[str, Any], mime_type: str) -> str | None:
    """A text value; nbformat allows a list of lines too."""
    value = bundle.get(mime_type)
    if isinstance(value, str):
        return value
    if isinstance(value, list) and value and all(isinstance(line, str) for line in value):
        return "".join(value)
    return None


def _json(bundle: Mapping[str, Any]) -> str | None:
    if "application/json" not in bundle:
        return None
    try:
        return json.dumps(bundle["application/json"], ensure_ascii=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError):
        return None
