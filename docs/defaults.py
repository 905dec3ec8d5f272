"""Write the tables of defaults in operations.md from replsvc/config.py: `nox -s docs`."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from replsvc.config import Config, Environment, Limits, MiB, Service

PAGE = Path(__file__).with_name("operations.md")
BEGIN, END = "<!-- defaults: written by `nox -s docs` -->", "<!-- end of defaults -->"
SECTIONS: tuple[tuple[str, str, type[BaseModel]], ...] = (
    ("", "The service as a whole", Config),
    ("limits", "One session", Limits),
    ("service", "HTTP", Service),
    ("environments.NAME", "An environment that sessions run in", Environment),
)


def _shown(name: str, field: FieldInfo) -> str:
    value = field.get_default(call_default_factory=True)
    if value is None:
        return "none"
    if value in ((), {}):
        return "empty"
    if name.endswith("_bytes") and value % MiB == 0:
        return f"{value} ({value // MiB} MiB)"
    return f"{value:g}" if isinstance(value, float) else str(value)


def tables() -> str:
    """All settings with their defaults, as Markdown: one table a section."""
    parts = []
    for prefix, title, section in SECTIONS:
        rows = [f"### {title}", "", "| setting | default | what it is |", "| --- | --- | --- |"]
        for name, field in section.model_fields.items():
            if isinstance(field.default, BaseModel):
                continue  # a section with a table of its own
            key = f"{prefix}.{name}" if prefix else name
            rows.append(f"| `{key}` | {_shown(name, field)} | {field.description or ''} |")
        parts.append("\n".join(rows))
    return "\n\n".join(parts)


def page() -> str:
    """operations.md as it should be. Raises `ValueError` when it has lost its markers."""
    text = PAGE.read_text(encoding="utf-8")
    head, rest = text.split(BEGIN)
    _, tail = rest.split(END)
    return f"{head}{BEGIN}\n\n{tables()}\n\n{END}{tail}"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
