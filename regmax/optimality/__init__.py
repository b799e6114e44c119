"""When y is the optimum: the optimality condition, certificates, and what is wrong with an Ω.

It imports ``regmax.regularizers`` and ``regmax.kernels``. Solvers and derivatives build on
it.
"""
