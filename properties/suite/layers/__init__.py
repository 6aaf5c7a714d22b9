"""Layers as Hypothesis state machines: a call depends on its arguments and the weights of now."""
