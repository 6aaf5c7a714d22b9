"""Bugs planted in the source of a process of its own, and what notices them."""
