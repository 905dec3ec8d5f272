"""The guest: our kernel, run as a directory by any environment's Python (3.9+, with ipykernel).

It shares nothing with the host but the wire: no module of ours is imported by name in here, and
what runs here sees no module of ours. `__main__` says how it starts.
"""
