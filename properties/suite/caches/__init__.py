"""Caches as Hypothesis state machines: any order of calls, compared with lists of tokens and
states.
"""
