"""The text of an HTML document, for a model that gets nothing better."""

from __future__ import annotations

import re
from html import unescape

MAX_HTML = 256 * 1024
"""Characters of a document that are read; the text says so when there were more."""

_DROPPED = frozenset(("head", "noscript", "svg"))
_BLOCKS = frozenset(
    (
        *("address", "article", "aside", "blockquote", "br", "details", "div", "figcaption"),
        *("figure", "footer", "form", "header", "hr", "main", "nav", "p", "pre", "section"),
        *("h1", "h2", "h3", "h4", "h5", "h6", "summary"),
        *("dd", "dl", "dt", "li", "ol", "ul"),
        *("table", "tbody", "tfoot", "thead", "tr"),
    )
)
_CELLS = frozenset(("td", "th"))
# Not html.parser: unclosed constructs take it quadratic time (256 KiB of "<!--": half a minute),
# and the document is a kernel's. Every quantifier here is possessive, and bounded but for quoted
# values: of those a tag reads at most 50, so that few tags can look at the same long one.
_TAG = re.compile(
    r"<(?P<close>/?)(?P<name>[a-zA-Z][a-zA-Z0-9]{0,20}+)(?=[\s/>])"
    r"(?:[^<>\"']{1,1000}+|\"[^\"]*+\"|'[^']*+'){0,50}+>"
    r"|<[!?][^<>]{0,1000}+>"
)
_RAW = {
    name: re.compile(rf"</{name}(?=[\s/>])", re.IGNORECASE)
    for name in ("script", "style", "template")
}
_SPACE = re.compile(r"[ \t\r\n\f]+")
_DATA_URL = re.compile(r"data:([\w.+-]{1,80}+/[\w.+-]{1,80}+)((?:;[\w=.+-]{1,80}+){0,5}+),")
_DATA = re.compile(r"[\w+/=%.~!*$&;:@,-]*+", re.ASCII)
_SHORT = 100
_NOTE = re.compile(r"\[[\w.+-]{1,80}/[\w.+-]{1,80}, [\d,]{1,20} bytes left out\]")


def html_text(html: str) -> str:
    """The visible text of `html`: blocks on lines, table rows as `a | b`, no scripts and styles.

    What stands in it as a `data:` URL is named with its type and size. Bounded by `MAX_HTML`, not
    counting such data; anything is taken, nothing raises.
    """
    document, whole = without_data(html, MAX_HTML)
    if not whole and document.rfind("<") > document.rfind(">"):
        document = document[: document.rfind("<")]  # the cut went through a tag
    reader = _Reader()
    reader.read(document)
    text = reader.text()
    if not whole:
        text += f"\n[HTML of {len(html):,} characters: text of the first {MAX_HTML:,} only]"
    return text


def without_data(text: str, max_chars: int) -> tuple[str, bool]:
    """At most `max_chars` of `text` with a note for each long `data:` URL; whether that is all."""
    parts: list[str] = []
    room, at = max_chars, 0
    while at < len(text) and room > 0:
        url = _DATA_URL.search(text, at, at + room)
        if url is None:
            parts.append(text[at : at + room])
            at += room
            break
        data = _DATA.match(text, url.end())
        end = data.end() if data else url.end()
        if end - url.end() < _SHORT:
            part = text[at:end]
        else:
            size = end - url.end()
            if url[2].endswith(";base64"):
                size = size * 3 // 4
            part = f"{text[at : url.start()]}[{url[1]}, {size:,} bytes left out]"
        parts.append(part)
        room -= len(part)
        at = end
    return "".join(parts), at >= len(text)


class _Reader:
    """Collects lines from tags and the text between them."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._line: list[str] = []
        self._dropped: list[str] = []  # open elements whose text does not count
        self._cells = 0
        self._verbatim = 0

    def read(self, html: str) -> None:
        at = 0
        while at < len(html):
            start = html.find("<", at)
            if start < 0:
                start = len(html)
            if start > at and not self._dropped:
                self._line.append(unescape(html[at:start]))
            if start == len(html):
                return
            if html.startswith("<!--", start):
                end = html.find("-->", start + 4)
                at = end + 3 if end >= 0 else len(html)
                continue
            tag = _TAG.match(html, start)
            if tag is None:
                if not self._dropped:
                    self._line.append("<")
                at = start + 1
                continue
            at = tag.end()
            name = (tag["name"] or "").lower()
            if not self._dropped:
                self._line += _NOTE.findall(tag[0])
            if name in _RAW and not tag["close"]:
                closing = _RAW[name].search(html, at)
                at = closing.start() if closing else len(html)
            elif tag["close"]:
                self._close(name)
            elif not (name in _DROPPED and tag[0].endswith("/>")):
                self._open(name)

    def text(self) -> str:
        self._end_line()
        return "\n".join(self._lines)

    def _end_line(self) -> None:
        text = "".join(self._line)
        if not self._verbatim:
            text = _SPACE.sub(" ", text).strip(" ")
        if text:
            self._lines.append(text)
        self._line.clear()
        self._cells = 0

    def _open(self, tag: str) -> None:
        if tag in _DROPPED:
            self._dropped.append(tag)
        elif tag in _CELLS:
            if self._cells:
                self._line.append(" | ")
            self._cells += 1
        elif tag in _BLOCKS and self._cells and tag != "tr":
            self._line.append(" ")  # a block in a cell: the row stays one line
        elif tag in _BLOCKS:
            self._end_line()
            self._verbatim += tag == "pre"
            if tag == "li":
                self._line.append("- ")

    def _close(self, tag: str) -> None:
        if tag in _DROPPED:
            if tag in self._dropped:
                del self._dropped[self._dropped.index(tag) :]
        elif tag in ("tr", "table") or (tag in _BLOCKS and not self._cells):
            self._end_line()
            if tag == "pre":
                self._verbatim = max(0, self._verbatim - 1)
