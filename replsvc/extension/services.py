"""Who provides which service to whom: by direct, declared dependency, and to nobody else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from replsvc.extension.resolve import ResolvedExtension


def providers(
    extension: ResolvedExtension, kind: type, every: Mapping[str, ResolvedExtension]
) -> list[str]:
    """The names of those that provide `kind` to `extension`: itself, or direct dependencies."""
    if kind in extension.provides:
        return [extension.name]
    return [
        name
        for name in extension.dependencies
        if (found := every.get(name)) is not None and kind in found.provides
    ]


def uncovered(extensions: Sequence[ResolvedExtension]) -> list[str]:
    """The issues of tools that need what nobody provides to them, or several do."""
    every = {extension.name: extension for extension in extensions}
    issues = []
    for extension in extensions:
        for tool in extension.tools:
            for kind in tool.services:
                found = providers(extension, kind, every)
                if len(found) == 1:
                    continue
                who = f"extension {extension.name!r}: tool {tool.name!r} needs the service "
                if found:
                    several = " and ".join(map(repr, found))
                    issues.append(f"{who}{kind.__qualname__}, which {several} both provide")
                else:
                    issues.append(
                        f"{who}{kind.__qualname__}, which neither it nor a direct dependency "
                        "provides; add the extension that does to its `dependencies`"
                    )
    return issues
