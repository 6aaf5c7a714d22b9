"""Caches, and layers that decode with them."""
