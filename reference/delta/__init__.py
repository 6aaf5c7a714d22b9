"""Recurrences over a matrix state that is read before it is written: the delta rules."""
