"""What a cell showed that is too large for its result, as a file of its own."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from replsvc.output.images import IMAGE_TYPES, decode_base64


@dataclass(frozen=True, slots=True)
class Oversized:
    """One media type's data that is too large for a result."""

    mime_type: str
    data: Any

    def content(self) -> bytes:
        """As a file holds it. It is hostile: what is not what it says is kept as it came."""
        if not isinstance(self.data, str):
            return json.dumps(self.data, ensure_ascii=False).encode("utf-8", "backslashreplace")
        if self.mime_type in IMAGE_TYPES:
            raw = decode_base64(self.data, len(self.data))
            if raw is not None:
                return raw
        return self.data.encode("utf-8", "backslashreplace")
