"""Normalization of queries and keys, and of outputs with a gate."""
