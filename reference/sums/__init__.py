"""Sums over tokens, and systems of a chunk of them."""
