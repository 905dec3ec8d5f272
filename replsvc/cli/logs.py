"""Where the service's own log goes: standard error, for people on a terminal, else JSON lines."""

from __future__ import annotations

import logging
import os
import sys
from typing import Any

import structlog


def log_to_stderr(level: int = logging.WARNING) -> None:
    """Send what structlog logs, from `level` up, to standard error; NO_COLOR is honoured."""
    stderr: Any = sys.stderr
    terminal = stderr is not None and stderr.isatty()
    processors: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    if terminal:
        colours = not os.environ.get("NO_COLOR")
        processors.append(
            structlog.dev.ConsoleRenderer(
                colors=colours, exception_formatter=structlog.dev.plain_traceback
            )
        )
    else:
        processors += [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    structlog.configure(
        processors=processors,
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(file=stderr),
    )
