"""Layers: what a module makes of its options, and what it hands to its op."""
