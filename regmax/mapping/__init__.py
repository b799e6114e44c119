"""Π_Ω(x): scores to rows, then a kernel, closed form or solver, and its derivatives in every mode.

It imports ``regmax.solvers`` and what is below; functions, layers and losses build on it.
"""
