"""Results are the same bits in every context: without gradients, compiled, run again, and so on.

Inference mode comes first: a table cached there must not serve training.
"""

from dataclasses import replace

from properties.laws.expect import expect_same
from properties.laws.law import Law, Run

_FIRST = "inference_mode"
# One in so many cases is compiled as well, besides those that are drawn so.
_SOME = 16


def check(run: Run) -> float:
    case = run.case
    plain = run.on(replace(case, context="grad"))
    inputs = plain.inputs()
    known = run.subject.target.contexts
    contexts = [name for name in known if name not in ("grad", "compiled")]
    contexts.sort(key=lambda name: name != _FIRST)
    compiles = case.seed % _SOME == 0 and "compiled" in known and case.numbers == "python"
    if compiles or case.context == "compiled":
        contexts.append("compiled")
    calls = []
    for context in contexts:
        one = run.on(replace(case, context=context))
        cotangents = one.cotangents()
        calls.append((one, cotangents, one.call(inputs, cotangents)))
    want = plain.call(inputs, plain.cotangents())
    worst = 0.0
    for one, cotangents, got in calls:
        against = f"the call with gradients, where it is in {one.case.context}"
        some = {name: want[name] for name in got}
        worst = max(worst, expect_same(one, inputs, cotangents, got, some, against))
    return worst


LAW = Law("context_invariance", check)
