"""Normalization of the vectors of each head."""
