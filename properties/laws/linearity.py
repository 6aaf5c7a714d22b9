"""Values and states times -2 give outputs and final states times -2, bit for bit.

The factor is negative because a maximum or an absolute value doubles as well.
"""

from dataclasses import replace

from properties.cases.case import Case
from properties.cases.layouts import relaid
from properties.catalogue.op import Op
from properties.laws.expect import expect_identical
from properties.laws.law import Law, Run, with_known_options, without_float16_subnormals

FACTOR = -2.0
_OPTIONS = {"normalize": False, "activation": None}


def check(run: Run) -> float:
    op, case = run.op, run.case
    inputs = run.inputs()
    once = run.call(inputs)
    # Keep the layout: another alignment is another specialisation, whose bits may differ on a GPU.
    linear_in = {n: x for n, x in inputs.tensors.items() if n in op.linear_in}
    scaled = {n: relaid(FACTOR * x, case.layout_of(n)) for n, x in linear_in.items()}
    linear = {o.name for o in op.outputs if o.linear}
    expect_identical(
        run,
        run.call(inputs.with_tensors(scaled)),
        {name: FACTOR * y if name in linear else y for name, y in once.items()},
        f"{FACTOR} times {' and '.join(op.linear_in)}",
        divisor=1.0,
    )
    return 0.0


def adapt(op: Op, case: Case) -> Case:
    """Remove the normalizer, whose channel of ones does not double, and the activation."""
    case = without_float16_subnormals(op, with_known_options(case, **_OPTIONS))
    return op.settle(replace(case, same={}))


LAW = Law("linearity", check, adapt, options=_OPTIONS)
