"""Ahead-of-time compilation: every kernel for every architecture, without a GPU.

Nothing lists kernels. An op runs forward and backward on CPU tensors; its launches are recorded
instead of executed, then compiled for the architecture and checked against its limits. This needs a
process of its own, see `worker`.
"""
