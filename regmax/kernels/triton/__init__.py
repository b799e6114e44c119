"""Kernels for the GPU, compiled by Triton. Plugins import them on first use."""
