"""The text of an HTML document, for a model that gets nothing better."""

from __future__ import annotations

import re
from html.parser import HTMLParser

MAX_HTML = 256 * 1024
"""Characters of a document that are read; the text says so when there were more."""

_DROPPED = frozenset(("script", "style", "template", "noscript", "head", "svg"))
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
_SPACE = re.compile(r"[ \t\r\n\f]+")


def html_text(html: str) -> str:
    """The visible text of `html`: blocks on lines, table rows as `a | b`, no scripts and styles.

    Bounded by `MAX_HTML`; anything is taken, nothing raises.
    """
    reader = _Reader()
    reader.feed(html[:MAX_HTML])
    reader.close()
    text = reader.text()
    if len(html) > MAX_HTML:
        text += f"\n[HTML of {len(html):,} characters: text of the first {MAX_HTML:,} only]"
    return text


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self._lines: list[str] = []
        self._line: list[str] = []
        self._dropped: list[str] = []  # open elements whose text does not count
        self._cells = 0
        self._verbatim = 0

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

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        del attrs
        if tag in _DROPPED:
            self._dropped.append(tag)
        elif tag in _CELLS:
            if self._cells:
                self._line.append(" | ")
            self._cells += 1
        elif tag in _BLOCKS and not (self._cells and tag != "tr"):
            self._end_line()
            self._verbatim += tag == "pre"
            if tag == "li":
                self._line.append("- ")
        elif tag in _BLOCKS:
            self._line.append(" ")  # a block in a cell: the row stays one line

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in _DROPPED:
            self.handle_starttag(tag, attrs)

    def handle_endtag(self, tag: str) -> None:
        if tag in _DROPPED:
            if tag in self._dropped:
                del self._dropped[self._dropped.index(tag) :]
        elif tag in ("tr", "table") or (tag in _BLOCKS and not self._cells):
            self._end_line()
            if tag == "pre":
                self._verbatim = max(0, self._verbatim - 1)

    def handle_data(self, data: str) -> None:
        if not self._dropped:
            self._line.append(data)
