"""Kernels execute: launch, talk to and end Jupyter kernels; knows no session, tenant or transport."""
