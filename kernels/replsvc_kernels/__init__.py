"""Kernels execute: launch, talk to and end Jupyter kernels; no session, tenant or transport."""
