"""What Ω is: the contract of regularizers and penalties, their curvature and algebra, the registry.

It imports ``regmax.kernels`` alone.
"""
