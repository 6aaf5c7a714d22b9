"""Results are the same bits in every context: without gradients, under autocast, compiled.

Inference mode comes first: a table cached there must not serve training.
"""

from dataclasses import replace

from properties.cases.case import Case
from properties.catalogue.op import Op
from properties.laws.judge import expect_same
from properties.laws.law import Law, Subject

_FIRST = "inference_mode"
# One in so many cases is compiled as well, besides those that are drawn so.
_SOME = 16


def check(op: Op, case: Case, subject: Subject) -> float:
    plain = replace(case, context="grad")
    inputs, gradients_of = subject.inputs(op, plain), subject.cotangents(op, plain)
    known = subject.target.contexts
    contexts = [name for name in known if name not in ("grad", "compiled")]
    contexts.sort(key=lambda name: name != _FIRST)
    compiles = case.seed % _SOME == 0 and "compiled" in known and case.numbers == "python"
    if compiles or case.context == "compiled":
        contexts.append("compiled")
    calls = []
    for context in contexts:
        one = replace(case, context=context)
        incoming = subject.cotangents(op, one)
        calls.append((one, incoming, subject.run(op, one, inputs, incoming)))
    want = subject.run(op, plain, inputs, gradients_of)
    worst = 0.0
    for one, incoming, got in calls:
        against = f"the call with gradients, where it is in {one.context}"
        some = {name: want[name] for name in got}
        call = "context_invariance", op, one, subject, inputs, incoming
        worst = max(worst, expect_same(*call, got, some, against))
    return worst


LAW = Law("context_invariance", check)
