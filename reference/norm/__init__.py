"""Normalisation of the vectors of each head."""
