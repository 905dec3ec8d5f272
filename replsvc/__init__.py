"""The coordinator of sandboxed REPL sessions.

    import trio
    from replsvc import Config, Coordinator, Extension

    async def main():
        async with Coordinator(Config(isolation="none")) as coordinator:
            async with coordinator.session(extensions=[Extension(code="x = 41")]) as session:
                call = await session.run("x + 1")
                print(call.text)

    trio.run(main)

Importing this starts nothing and is cheap: each name is imported when it is first asked for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from replsvc.calls import Call, CallRequest, Event
    from replsvc.config import Config, Environment, Limits, Service
    from replsvc.coordinator import Coordinator
    from replsvc.errors import (
        AlreadyAnsweredError,
        BackendUnavailableError,
        ConfigError,
        ConflictError,
        ExtensionDisposeError,
        ExtensionError,
        ExtensionSetupError,
        InvalidInputError,
        IsolationUnavailableError,
        NotFoundError,
        QuestionNotFoundError,
        QueueFullError,
        QuotaExceededError,
        ReentrantCallError,
        ReplsvcError,
        ServiceStoppingError,
        SessionClosedError,
        SessionNotFoundError,
        StaleContextError,
        StartupFailedError,
        StartupTimeoutError,
        StorageError,
    )
    from replsvc.extension.context import SetupContext, ToolContext
    from replsvc.extension.contract import Extension
    from replsvc.extension.file_locks import file_lock
    from replsvc.extension.hooks import Block, HookContext, Hooks, ToolCallEvent
    from replsvc.extension.paths import inside
    from replsvc.extension.quote import quote
    from replsvc.extension.results import Image, ToolResult
    from replsvc.extension.secret import Secret
    from replsvc.extension.tools import Tool, tool
    from replsvc.extension.truncation import truncate
    from replsvc.session import Session
    from replsvc.session_values import Mount, SessionRequest

__all__ = [
    "AlreadyAnsweredError",
    "BackendUnavailableError",
    "Block",
    "Call",
    "CallRequest",
    "Config",
    "ConfigError",
    "ConflictError",
    "Coordinator",
    "Environment",
    "Event",
    "Extension",
    "ExtensionDisposeError",
    "ExtensionError",
    "ExtensionSetupError",
    "HookContext",
    "Hooks",
    "Image",
    "InvalidInputError",
    "IsolationUnavailableError",
    "Limits",
    "Mount",
    "NotFoundError",
    "QuestionNotFoundError",
    "QueueFullError",
    "QuotaExceededError",
    "ReentrantCallError",
    "ReplsvcError",
    "Secret",
    "Service",
    "ServiceStoppingError",
    "Session",
    "SessionClosedError",
    "SessionNotFoundError",
    "SessionRequest",
    "SetupContext",
    "StaleContextError",
    "StartupFailedError",
    "StartupTimeoutError",
    "StorageError",
    "Tool",
    "ToolCallEvent",
    "ToolContext",
    "ToolResult",
    "file_lock",
    "inside",
    "quote",
    "tool",
    "truncate",
]

_HOMES = {
    "Call": "calls",
    "CallRequest": "calls",
    "Config": "config",
    "Coordinator": "coordinator",
    "Environment": "config",
    "Event": "calls",
    "Extension": "extension.contract",
    "Block": "extension.hooks",
    "HookContext": "extension.hooks",
    "Hooks": "extension.hooks",
    "ToolCallEvent": "extension.hooks",
    "Image": "extension.results",
    "Limits": "config",
    "Mount": "session_values",
    "Secret": "extension.secret",
    "Service": "config",
    "Session": "session",
    "SessionRequest": "session_values",
    "SetupContext": "extension.context",
    "Tool": "extension.tools",
    "ToolContext": "extension.context",
    "ToolResult": "extension.results",
    "file_lock": "extension.file_locks",
    "inside": "extension.paths",
    "quote": "extension.quote",
    "tool": "extension.tools",
    "truncate": "extension.truncation",
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = importlib.import_module(f"replsvc.{_HOMES.get(name, 'errors')}")
    value: object = getattr(home, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
