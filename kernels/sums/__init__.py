"""Sums and means over tokens, and systems of a chunk of them."""
