"""Kernels for the CPU, compiled by numba. Their plugins import them when one is asked for."""
