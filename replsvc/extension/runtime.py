"""A session's extensions at work: its tools by name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import trio

from replsvc.extension.context import SessionView
from replsvc.extension.handlers import MAX_THREADS
from replsvc.extension.in_code import spec_of
from replsvc.extension.resolve import ResolvedExtension
from replsvc.extension.tools import Tool


@dataclass(frozen=True, slots=True)
class BoundTool:
    """A tool of a session: with the extension it comes from."""

    tool: Tool[Any]
    extension: ResolvedExtension


class Runtime:
    """See the module. One a session: nothing in it is shared with another."""

    def __init__(self, extensions: Iterable[ResolvedExtension], session: SessionView) -> None:
        self.session = session
        self.threads = trio.CapacityLimiter(MAX_THREADS)
        self.tools: Mapping[str, BoundTool] = MappingProxyType(
            {
                tool.name: BoundTool(tool, extension)
                for extension in extensions
                for tool in extension.tools
            }
        )
        self.specs = tuple(spec_of(bound.tool) for bound in self.tools.values())
        """What code in the kernel is told of them; always the same object."""

    def resource(self, extension: ResolvedExtension) -> Any:
        """What the extension's setup gave; None without one."""
        del extension
        return None
