"""Layers as Hypothesis state machines: a call depends only on its arguments and the current
weights.
"""
