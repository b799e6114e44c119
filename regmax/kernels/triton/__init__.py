"""Kernels for the GPU, compiled by Triton. Their plugins import them when one is asked for."""
