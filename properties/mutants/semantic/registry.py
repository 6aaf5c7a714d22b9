"""The semantic operators by name: each makes one kind of mistake that takes more than one token."""

from properties.mutants.operators import Operator, registering

SEMANTIC: dict[str, Operator] = {}
kind = registering(SEMANTIC)
