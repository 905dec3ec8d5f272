"""The fork server: one process an environment, that forks isolated kernels in milliseconds.

Runs in the environment's own Python, single-threaded, and never runs a tenant's code. `server` is
the process, `child` what becomes a kernel. Nothing here is imported by the coordinator.
"""
