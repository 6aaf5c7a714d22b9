"""Kinds of ops: who needs all ops of a kind asks here, and names none."""

from properties.catalogue.op import Argument, Op, Role


def carries_states(op: Op) -> bool:
    """Whether it is a recurrence whose state is one matrix for each head, of keys by values."""
    return any(x.role is Role.STATE and x.dims.startswith("N H K V") for x in op.arguments)


def is_delta(op: Op) -> bool:
    """Whether the op corrects its state where it is read."""
    return has(op, Role.UNIT_KEY) or has(op, Role.LOW_RANK)


def has(op: Op, role: Role) -> bool:
    """Whether one of its tensors has this role."""
    return any(argument.role is role for argument in op.arguments)


def groups_heads(op: Op) -> bool:
    """Whether several heads share another tensor's head."""
    return {"G", "R"} <= op.dims.keys()


def gates(op: Op) -> list[Argument]:
    """The log decays of each token."""
    return [x for x in op.arguments if x.role is Role.LOG_DECAY and {"T", "S"} & {*x.dims.split()}]


def gates_of_keys(op: Op) -> list[Argument]:
    """The log decays of single key channels."""
    return [gate for gate in gates(op) if "K" in gate.dims.split()]
