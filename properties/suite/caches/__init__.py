"""Caches as Hypothesis state machines: any order of calls, against lists of tokens and states."""
