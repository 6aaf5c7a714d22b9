"""Ahead-of-time compilation: every kernel for every architecture, on a machine without a GPU.

Nothing lists kernels. An op runs as usual, forward and backward, on CPU tensors, but each of its
launches is recorded instead of compiled and executed; what was recorded is then compiled for the
architecture and held against its limits. This belongs into a process of its own, see `worker`.
"""
