"""The tool's description: what a model reads before it uses the REPL. Pure text from facts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from replsvc.extension.in_code import expression_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from replsvc.extension.tools import Tool

PACKAGES_SHOWN = 400
"""Characters of the list of packages."""
HOSTS_SHOWN = 200
"""Characters of the list of reachable hosts."""
TOOLS_SHOWN = 2_000
"""Characters of the list of tools for code, some 500 tokens."""
TOOL_SHOWN = 400
"""Characters of one tool there."""


@dataclass(frozen=True, slots=True)
class BaseFacts:
    """A session's real settings, as its tool's description states them.

    - `language`, `version`: the kernel's; an empty version is not said.
    - `lifetime`: whether names live as long as the session, or for one call.
    - `timeout_s`, `max_output_bytes`, `max_output_lines`: limits of one call; None is not in force
      and not said.
    - `memory_bytes`, `workspace_bytes`, `cpu_s`: what the session may use, if that is in force.
    - `network`: True is unrestricted, False is none, a tuple the only hosts that can be reached.
    - `isolation`: as the session gives it; "none" says that code runs as the host's own user.
    - `packages`: name and version of what can really be imported there, the most useful first.
    - `workspace`: what to know about the working directory, as sentences.
    """

    language: str = "python"
    version: str = ""
    lifetime: Literal["session", "call"] = "session"
    timeout_s: float | None = None
    max_output_bytes: int | None = None
    max_output_lines: int | None = None
    memory_bytes: int | None = None
    workspace_bytes: int | None = None
    cpu_s: float | None = None
    network: bool | tuple[str, ...] = False
    isolation: str = "none"
    packages: tuple[tuple[str, str], ...] = ()
    workspace: str = ""


def compose(base: BaseFacts, fragments: Sequence[str] = (), tools: Sequence[Tool[Any]] = ()) -> str:
    """The description: base text, each fragment that isn't blank, in order, the tools for code.

    They are joined by blank lines and otherwise kept as they are. The base's text stays under 1,700
    characters (some 425 tokens) as long as `workspace` is a sentence or two.
    """
    parts = [_base(base), *(fragment.strip("\n") for fragment in fragments), _tools(tools)]
    return "\n\n".join(part for part in parts if part.strip())


def _tools(tools: Sequence[Tool[Any]]) -> str:
    """A line a tool, as many as there is room for; the kernel tells of the rest."""
    if not tools:
        return ""
    lines: list[str] = []
    room = TOOLS_SHOWN
    for tool in tools:
        about = tool.description.strip().splitlines()[0]
        line = " ".join(f"{expression_of(tool)}: {about}".split())
        line = line if len(line) <= TOOL_SHOWN else f"{line[:TOOL_SHOWN]}..."
        if lines and len(line) > room:
            break
        lines.append(line)
        room -= len(line)
    if more := len(tools) - len(lines):
        lines.append(f"and {more} more: `dir(tools)` lists them, `help(tools.NAME)` describes one")
    return _bullets(
        "Tools that your code can call; each waits for its result, and raises `ToolError` where it "
        "fails (`await tools.NAME.call(...)` lets others run meanwhile):",
        lines,
    )


def _base(facts: BaseFacts) -> str:
    python = facts.language.lower() == "python"
    language = "Python" if python else facts.language
    kept = facts.lifetime == "session"
    environment = [_lifetime(kept), *_limits(facts), _network(facts.network)]
    if facts.isolation == "none":
        environment.append("Code is not isolated: it acts on the host itself, so take care.")
    if facts.workspace:
        environment.append(facts.workspace)
    if facts.packages:
        packages = shortlist(
            (f"{name} {version}".rstrip() for name, version in facts.packages), PACKAGES_SHOWN
        )
        environment.append(f"Importable: {packages}.")
    sections = [
        f"Runs {' '.join(filter(None, (language, facts.version)))} code in a REPL and returns its "
        "output. Use it to compute, to work with data and files, and to check what you believe, "
        "instead of guessing.",
        _bullets("Environment:", environment),
        _bullets("Output:", _output(python)),
    ]
    if python:
        sections.append(_EXAMPLE)
    sections.append(_bullets("Notes:", _notes(python=python, kept=kept)))
    return "\n\n".join(sections)


_EXAMPLE = """\
Example:
    words = "to be or not to be".split()
    print(len(words), "words")
    sorted(set(words))
returns
    6 words
    => ['be', 'not', 'or', 'to']"""


def _lifetime(kept: bool) -> str:
    if kept:
        return "Names, imports and files persist between calls of this session."
    return "Each call starts afresh: no names or imports of earlier calls exist."


def _limits(facts: BaseFacts) -> list[str]:
    limits = []
    if facts.timeout_s is not None:
        limits.append(f"A call is interrupted after {facts.timeout_s:g} s.")
    if facts.memory_bytes is not None:
        limits.append(f"Memory: {facts.memory_bytes // 2**20:,} MiB; more ends the session.")
    if facts.workspace_bytes is not None:
        limits.append(f"Files: {facts.workspace_bytes // 2**20:,} MiB in all.")
    if facts.cpu_s is not None:
        limits.append(f"After {facts.cpu_s:g} s of processor time in all the session starts anew.")
    sizes = [
        f"{limit:,} {unit}"
        for limit, unit in ((facts.max_output_bytes, "bytes"), (facts.max_output_lines, "lines"))
        if limit is not None
    ]
    if sizes:
        limits.append(f"Output over {' or '.join(sizes)} is shortened, and the result says so.")
    return limits


def _network(network: bool | tuple[str, ...]) -> str:
    if isinstance(network, tuple) and network:
        return f"Network: only {shortlist(network, HOSTS_SHOWN)}."
    return "Network: available." if network is True else "Network: none."


def _output(python: bool) -> list[str]:
    value = "the value of the last expression" if python else "a value that the kernel shows"
    return [
        f"You get what the code writes to stdout and stderr, then {value} as `=> value`, "
        "or the error with its traceback.",
        "The user does not see any of it: tell them what matters.",
    ]


def _notes(*, python: bool, kept: bool) -> list[str]:
    notes = []
    if kept:
        notes.append(
            "Work in small steps and build on earlier ones; after an error, names still hold."
        )
    else:
        notes.append("Put everything that a call needs into its code.")
    if python:
        notes.append("Top-level `await` works. Print a summary rather than all of a large object.")
    else:
        notes.append("Print a summary rather than all of a large object.")
    return notes


def _bullets(title: str, lines: Iterable[str]) -> str:
    return "\n".join([title, *(f"- {line}" for line in lines)])


def shortlist(items: Iterable[str], budget: int) -> str:
    """`a, b and 3 more`: as many whole items as `budget` characters hold, at least one."""
    every = list(items)
    shown: list[str] = []
    for item in every:
        if shown and len(", ".join([*shown, item])) > budget:
            break
        shown.append(item if shown else item[:budget])
    more = len(every) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")
