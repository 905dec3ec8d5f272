"""What a session is made of: everything that `opening` has resolved and checked for it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from replsvc.backends import Chosen
from replsvc.changes import Notices
from replsvc.config import Limits
from replsvc.extension.describe import BaseFacts
from replsvc.extension.resolve import ResolvedExtension
from replsvc.kernel_slot import KernelPlan
from replsvc.lasting import Lasting
from replsvc.session_values import Mount, SessionRequest
from replsvc.store.artifacts import ArtifactFiles
from replsvc.store.log import EventLog
from replsvc_kernels.workspaces import Workspace


@dataclass(frozen=True, slots=True)
class SessionParts:
    """What the coordinator hands to a new session: everything resolved and checked."""

    id: str
    request: SessionRequest
    tenant: str
    limits: Limits
    chosen: Chosen
    extensions: tuple[ResolvedExtension, ...]
    plan: KernelPlan
    place: Workspace
    mounts: tuple[Mount, ...]
    log: EventLog
    notices: Notices
    files: ArtifactFiles
    facts: Callable[[], Awaitable[BaseFacts]]
    """The facts of its description."""
    lasting: Lasting | None
    """Where its kernel and calls are held, if they survive a restart."""

    @property
    def workspace(self) -> Path:
        """Where the host finds the session's files; what is beneath it is hostile."""
        return self.place.path

    @property
    def workspace_bound(self) -> Literal["hard", "soft"] | None:
        """See `SessionInfo`."""
        if self.place.size_bytes is None:
            return None
        return "hard" if self.place.hard else "soft"

    @property
    def links(self) -> tuple[Mount, ...]:
        """Mounts that are links in the workspace, where there is no mount namespace for them."""
        return self.mounts if self.chosen.isolation == "none" else ()
