"""Kernels for the CPU, compiled by numba. Plugins import them on first use."""
