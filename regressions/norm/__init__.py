"""Normalisation of queries and keys."""
