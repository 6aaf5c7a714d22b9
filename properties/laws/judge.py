"""How laws compare: bit for bit, or with the oracle within the error budget."""

from typing import NoReturn

import torch
from torch import Tensor

from properties.case import Case
from properties.catalogue.op import Op
from properties.laws.law import Subject, Violation
from properties.tensors import Inputs, Results, run


def oracle_results(op: Op, inputs: Inputs, gradients_of: Results | None) -> Results:
    """What the oracle says in float64, on the numbers that the implementation was given."""
    exact = inputs.to(torch.float64)
    incoming = None
    if gradients_of is not None:
        incoming = {name: x.to("cpu", torch.float64) for name, x in gradients_of.items()}
    return run(op, op.oracle, exact, incoming)


def fail(law: str, op: Op, case: Case, subject: Subject, text: str) -> NoReturn:
    raise Violation(law, case, f"{law}: {text}\n{case.line()}")


def expect_identical(
    law: str,
    op: Op,
    case: Case,
    subject: Subject,
    got: Results,
    want: Results,
    against: str,
) -> None:
    if set(got) != set(want):
        fail(law, op, case, subject, f"results {sorted(got)}, expected {sorted(want)}")
    for name, x in got.items():
        y = want[name].to(x.device, x.dtype)
        if x.shape != y.shape or not bool((x == y).all()):
            fail(law, op, case, subject, f"{name} differs from {against}\n{x}\n{y}")


def compare_with_oracle(
    law: str,
    op: Op,
    case: Case,
    subject: Subject,
    inputs: Inputs,
    gradients_of: Results,
    got: Results,
) -> float:
    raise NotImplementedError
