"""Mutation testing: plant bugs and see which the suite catches."""
