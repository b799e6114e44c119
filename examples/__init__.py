"""Experiments of the papers on real data: ``python -m examples.NAME --help``."""
