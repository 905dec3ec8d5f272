"""How requests get in: bytes to values and back; no decisions."""
