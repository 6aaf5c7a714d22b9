"""The semantic operators by name."""

from properties.mutants.operators import Operator, registering

SEMANTIC: dict[str, Operator] = {}
kind = registering(SEMANTIC)
