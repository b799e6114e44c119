"""The interface of regularizers and penalties, their curvature and algebra, and the registry.

This chapter imports only ``regmax.kernels``.
"""
