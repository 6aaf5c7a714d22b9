"""Bugs that really happened: each pinned by a case, and planted again to see the case catch it."""
