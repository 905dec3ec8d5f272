"""A session's extensions at work: its tools by name, and their resources."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import trio

from replsvc.extension.context import SessionView
from replsvc.extension.handlers import MAX_THREADS
from replsvc.extension.hooks import HookContext
from replsvc.extension.in_code import spec_of
from replsvc.extension.resolve import ResolvedExtension
from replsvc.extension.resources import Resources
from replsvc.extension.tools import Tool
from replsvc.redaction import Redactor


@dataclass(frozen=True, slots=True)
class BoundTool:
    """A tool of a session: with the extension it comes from."""

    tool: Tool[Any]
    extension: ResolvedExtension


class Runtime:
    """See the module. One a session: nothing in it is shared with another."""

    def __init__(
        self,
        extensions: Sequence[ResolvedExtension],
        session: SessionView,
        redactor: Redactor,
        limit_s: float,
    ) -> None:
        self.session = session
        self.threads = trio.CapacityLimiter(MAX_THREADS)
        self.resources = Resources(extensions, session, self.threads, redactor, limit_s)
        self.tools: Mapping[str, BoundTool] = MappingProxyType(
            {
                tool.name: BoundTool(tool, extension)
                for extension in extensions
                for tool in extension.tools
            }
        )
        self.on_tool_call = tuple(
            (extension, handler)
            for extension in extensions
            if extension.hooks is not None
            for handler in extension.hooks.tool_call
        )
        """Who decides on calls, in the order of asking."""
        self.hook_contexts: dict[str, HookContext] = {}
        """What handlers are given, by their extension's name, once it has been needed."""
        self.specs = tuple(spec_of(bound.tool) for bound in self.tools.values())
        """What code in the kernel is told of them; always the same object."""

    def service(self, bound: BoundTool, kind: type) -> Any:
        """A service for a tool's handler. Raises `LookupError` for one that it does not name."""
        if kind not in bound.tool.services:
            raise LookupError(
                f"tool {bound.tool.name!r} has not named the service {kind.__qualname__}; "
                f"make it with services=[{kind.__qualname__}]"
            )
        return self.resources.service(bound.extension, kind)
