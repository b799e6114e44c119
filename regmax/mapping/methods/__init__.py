"""What computes Π_Ω of rows: kernels, closed forms, prox ∘ base, kernels from the value, solvers.

:mod:`.choose` names one of them for a call.
"""
