"""Every error that replsvc raises, one base, each with a stable code and an HTTP status.

A user's failing code is never one of these: it is a `Call` with `status="error"`. Neither is a
limit (a status with a cause). These are: a request that can't be carried out as asked (4xx), or a
fault of ours or of what we lean on (5xx). `code` is part of the public interface and does not
change.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar


def with_hint(message: str, hint: str) -> str:
    """Both as one line of sentences."""
    if not hint:
        return message
    return f"{message}{'' if message.endswith(('.', '!', '?')) else '.'} {hint}"


class ReplsvcError(Exception):
    """Base of all. `message` says what happened, `hint` what the caller may do about it.

    `details` is plain JSON that programs may read; both texts are for people and models.
    """

    code: ClassVar[str] = "internal_error"
    http_status: ClassVar[int] = 500
    title: ClassVar[str] = "Internal error"

    def __init__(
        self, message: str, *, hint: str = "", details: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.details = dict(details or {})

    def __str__(self) -> str:
        """Message and hint on one line, as a terminal shows them."""
        return with_hint(self.message, self.hint)


class ConfigError(ReplsvcError):
    """Raised when settings are read. Mend the named setting."""

    code, http_status, title = "config_invalid", 500, "Configuration is invalid"


class InvalidInputError(ReplsvcError):
    """Raised before anything changes when a request's fields are wrong. Mend the named field."""

    code, http_status, title = "invalid_input", 422, "Invalid input"


class UnauthorizedError(ReplsvcError):
    """Raised by gateways when no or a wrong key came. Send `Authorization: Bearer KEY`."""

    code, http_status, title = "unauthorized", 401, "Key missing or wrong"


class OriginError(ReplsvcError):
    """Raised by gateways when Host or Origin is not one that the operator allows."""

    code, http_status, title = "origin_refused", 403, "Host or Origin refused"


class NotFoundError(ReplsvcError):
    """Base of lookups that found nothing."""

    code, http_status, title = "not_found", 404, "Not found"


class SessionNotFoundError(NotFoundError):
    """Raised by lookups. The session never was, or was deleted."""

    code, title = "session_not_found", "No such session"


class ArtifactNotFoundError(NotFoundError):
    """Raised for an artefact that the session does not have, or that was not kept."""

    code, title = "artifact_not_found", "No such artefact"


class CallNotFoundError(NotFoundError):
    """Raised by lookups within a session."""

    code, title = "call_not_found", "No such call"


class ConflictError(ReplsvcError):
    """Raised when an id is taken by a different request. Choose another, or send the same."""

    code, http_status, title = "id_conflict", 409, "Id is taken"


class QuestionNotFoundError(NotFoundError):
    """Raised by answers. Nobody has asked that, or it is long over."""

    code, title = "question_not_found", "No such question"


class AlreadyAnsweredError(ConflictError):
    """Raised by answers that come second, or after whoever asked has gone on."""

    code, title = "already_answered", "Question is over"


class SessionClosedError(ReplsvcError):
    """Raised by uses of a session that was closed or failed. Open another."""

    code, http_status, title = "session_closed", 409, "Session is closed"


class QueueFullError(ReplsvcError):
    """Raised when `queue_limit` calls wait already. `details` say which runs, and since when."""

    code, http_status, title = "queue_full", 429, "Queue is full"


class QuotaExceededError(ReplsvcError):
    """Raised when a bound of the service is reached. Close a session, or wait."""

    code, http_status, title = "quota_exceeded", 429, "Quota exceeded"


class ExtensionError(ReplsvcError):
    """Raised when extensions can't be used as listed; `issues` has every problem, in order."""

    code, http_status, title = "extension_invalid", 422, "Extensions can't be used as listed"

    def __init__(self, message: str, *, issues: tuple[str, ...] = (), hint: str = "") -> None:
        self.issues = issues or (message,)
        super().__init__(message, hint=hint, details={"issues": list(self.issues)})


class ReentrantCallError(ReplsvcError):
    """Raised to a tool that wants the kernel whose code waits for this tool."""

    code, http_status, title = "reentrant_call", 409, "The kernel waits for this call"


class StaleContextError(ReplsvcError):
    """Raised to an extension that uses a context whose call or session is over."""

    code, http_status, title = "stale_context", 409, "Context is over"


class ExtensionSetupError(ReplsvcError):
    """Raised when an extension's setup fails: its code in the kernel, or its resource's setup.

    `extension` is its name, `traceback` the original one with the extension's own file and line,
    `output` what it had printed.
    """

    code, http_status, title = "extension_setup_failed", 422, "An extension's setup code failed"

    def __init__(
        self, message: str, *, extension: str, traceback: str = "", output: str = "", hint: str = ""
    ) -> None:
        self.extension, self.traceback, self.output = extension, traceback, output
        super().__init__(
            message,
            hint=hint,
            details={"extension": extension, "traceback": traceback, "output": output},
        )


class ExtensionDisposeError(ReplsvcError):
    """Raised when a session was closed, and an extension could not dispose of its resource."""

    code, http_status, title = "extension_dispose_failed", 500, "An extension's disposal failed"


class BackendUnavailableError(ReplsvcError):
    """Raised when no kernel can be started as asked: something it needs is missing."""

    code, http_status, title = "backend_unavailable", 422, "Backend is not available"


class IsolationUnavailableError(BackendUnavailableError):
    """Raised when the isolation that was asked for can't be given on this machine."""

    code, title = "isolation_unavailable", "Isolation is not available"


class StartupTimeoutError(ReplsvcError):
    """Raised when a kernel does not become ready in time; nothing of it is left behind."""

    code, http_status, title = "startup_timeout", 504, "Kernel did not become ready"


class StartupFailedError(ReplsvcError):
    """Raised when a kernel's process ends before it is ready; `details` carry what it printed."""

    code, http_status, title = "startup_failed", 502, "Kernel could not be started"


class StorageError(ReplsvcError):
    """Raised when the event log can't be written or read: full, read-only or damaged disk.

    What was acknowledged before is safe; the failed append left nothing behind. It heals by itself
    when the disk does.
    """

    code, http_status, title = "storage_unavailable", 507, "Event log can't be written"


class ServiceStoppingError(ReplsvcError):
    """Raised for new work while the service stops."""

    code, http_status, title = "service_stopping", 503, "Service is stopping"
