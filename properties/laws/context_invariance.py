"""Results are the same bits in every context: without gradients, under autocast, compiled.

Inference mode runs before the last plain call: a table cached there must not serve training.
"""

from dataclasses import replace

from properties.cases.case import Case
from properties.catalogue.op import Op
from properties.laws.judge import expect_same
from properties.laws.law import Law, Subject


def check(op: Op, case: Case, subject: Subject) -> float:
    plain = replace(case, context="grad")
    inputs, gradients_of = subject.inputs(op, plain), subject.cotangents(op, plain)
    want = subject.run(op, plain, inputs, gradients_of)
    worst = 0.0
    contexts = [name for name in subject.target.contexts if name not in ("grad", "compiled")]
    for context in [*contexts, case.context, "grad"]:
        one = replace(case, context=context)
        incoming = subject.cotangents(op, one)
        got = subject.run(op, one, inputs, incoming)
        against = f"the call with gradients, where it is in {context}"
        some = {name: want[name] for name in got}
        call = "context_invariance", op, one, subject, inputs, incoming
        worst = max(worst, expect_same(*call, got, some, against))
    return worst


LAW = Law("context_invariance", check)
