"""Laws keep addresses where they compare bits, and make valid cases only.

Another alignment or stride is another specialisation of a kernel, and a GPU's compiler may contract
a·b + c in one of them only.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor

from properties.cases.calls import outputs_and_gradients
from properties.cases.case import Case
from properties.cases.layouts import LAYOUTS
from properties.cases.tensors import build
from properties.catalogue import OPS, Op
from properties.catalogue.op import Function
from properties.device import activate
from properties.laws import LAWS, Run, Subject
from properties.targets import Adapter, load
from properties.targets.oracle import Oracle

Place = tuple[tuple[int, ...], int]


@dataclass
class Watched(Oracle):
    """The oracles, which record each call's strides and addresses modulo 16."""

    calls: list[dict[str, Place]] = field(default_factory=list)

    def function(self, op: Op) -> Function:
        inner = super().function(op)

        def function(**given: Any) -> Any:
            tensors = {n: x for n, x in given.items() if isinstance(x, Tensor)}
            self.calls.append({n: (x.stride(), x.data_ptr() % 16) for n, x in tensors.items()})
            return inner(**given)

        return function


@pytest.mark.parametrize("layout", sorted(LAYOUTS))
@pytest.mark.parametrize("law", ["linearity", "scale_equivariance", "causality"])
def test_calls_of_which_the_bits_are_compared_lie_alike(law: str, layout: str) -> None:
    op = OPS["simple_gla"]
    case = Case.of(
        op.name,
        "chunk",
        {"B": 2, "H": 2, "K": 5, "V": 3},
        (7,),
        given=("g", "initial_state"),
        options={"scale": 0.5, "output_final_state": True},
        layout=layout,
    )
    target = Watched()
    LAWS[law](op, case, Subject(target, torch.device("cpu")))
    first, *others = target.calls
    assert others
    assert all(call == first for call in others)


@pytest.mark.parametrize(("rows", "tokens"), [(0, 5), (9, 127)])
@pytest.mark.parametrize("law", OPS["rotary_embedding"].laws)
def test_each_row_that_a_law_keeps_or_adds_has_an_offset(law: str, rows: int, tokens: int) -> None:
    op = OPS["rotary_embedding"]
    dims = {"B": rows, "H": 2, "D": 8, "P": 4}
    offsets = [0] * rows
    options = {"interleaved": True, "seqlen_offsets": offsets, "conjugate": False, "inplace": False}
    case = Case.of(op.name, "fused", dims, (tokens,), options=options)
    LAWS[law](op, case, Subject(Oracle(), torch.device("cpu")))


def test_offsets_of_no_rows_are_integers_in_an_earlier_call_too() -> None:
    op = OPS["rotary_embedding"]
    dims = {"B": 0, "H": 2, "D": 8, "P": 4}
    options = {"interleaved": True, "seqlen_offsets": [], "conjugate": False, "inplace": False}
    case = Case.of(op.name, "fused", dims, (5,), options=options)
    dtypes = []

    def function(**given: Any) -> Any:
        dtypes.append(given["seqlen_offsets"].dtype)
        return op.oracle(**given)

    outputs_and_gradients(op, function, build(op, case), earlier={"seqlen_offsets": []})
    # The earlier call, the call itself, and the one after it.
    assert len(dtypes) == 3
    assert set(dtypes) == {torch.int64}


@pytest.mark.parametrize("scale", [0.5, -0.85693359375, None])
def test_modes_are_compared_in_bits_only_where_nothing_rounds(scale: float | None) -> None:
    """`auto` walks a short sequence and takes chunks of a pack; the two round a scale differently.

    The law compared bits for every scale. Its case was one of some 2000 drawn.
    """
    options = {} if scale is None else {"scale": scale}
    case = Case.of(
        "dplr",
        "fused_recurrent",
        {"B": 1, "H": 3, "K": 11, "V": 4},
        (7, 0, 76, 16),
        dtype="bfloat16",
        auto=True,
        packed=True,
        options=options,
        values="integers",
        seed=3181,
    )
    op, device = OPS["dplr"], activate("simulator")
    subject = Subject(load("ours", device), device)
    assert Run("packing", op, case, subject).compares_bits is (scale == 0.5)
    LAWS["packing"](op, case, subject)


def test_an_option_that_wide_numbers_need_stays() -> None:
    """Keys of 2^48 that are no unit keys make the systems of mesa_net singular."""
    case = Case.of(
        "mesa_net",
        "chunk",
        {"B": 1, "H": 1, "K": 8, "V": 3},
        (2,),
        options={"use_qk_l2norm_in_kernel": True, "output_final_state": True},
        values="wide_range",
    )
    target = Watched()
    LAWS["plumbing"](OPS["mesa_net"], case, Subject(target, torch.device("cpu")))
    assert len(target.calls) == 2


def test_a_result_that_cancels_may_be_the_same_with_another_option() -> None:
    """Unit keys of one channel erase the state, but for what the epsilon of their norm leaves."""
    case = Case.of(
        "delta_rule",
        "chunk",
        {"B": 1, "H": 2, "K": 1, "V": 1},
        (1, 31, *[0] * 8, 1, 1, 5, 7, 31, 31, 33),
        dtype="float16",
        packed=True,
        given=("initial_state",),
        options={"scale": 0.5, "use_qk_l2norm_in_kernel": True, "output_final_state": False},
        values="zeros",
        seed=7678,
    )
    device = activate("simulator")
    LAWS["plumbing"](OPS["delta_rule"], case, Subject(load("ours", device), device))


def _freed(x: Tensor) -> Tensor:
    x.untyped_storage().resize_(0)
    return x


def _calling_before(x: Tensor, harm: Callable[[Tensor], object]) -> Tensor:
    y = x.clone()
    harm(x)
    return y


def _backwards(x: Tensor, harm: Callable[[Tensor], Tensor]) -> Tensor:
    class Harmful(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, *gradients: Tensor) -> Tensor:
            return harm(*gradients)

    made: Tensor = Harmful.apply(x)
    return made


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda x: _calling_before(x, _freed), "it changes x: its storage size"),
        (
            lambda x: _calling_before(x, lambda x: setattr(x, "data", x.data[..., :2])),
            "it changes x: its shape",
        ),
        (lambda x: _freed(x.clone()), "it returns y without memory for its elements"),
        (
            lambda x: _backwards(x, lambda dy: _calling_before(dy, _freed)),
            "it changes the gradient of y: its storage size",
        ),
        (
            lambda x: _backwards(x, lambda dy: _freed(dy.clone())),
            "it returns dx without memory for its elements",
        ),
    ],
)
@pytest.mark.parametrize("earlier", [None, {}])
@pytest.mark.parametrize("law", ["differential", "determinism", "untouched_inputs"])
def test_memory_that_a_call_frees_is_told_by_name(
    law: str, earlier: dict[str, Any] | None, call: Callable[[Tensor], Tensor], told: str
) -> None:
    """Whoever read it next, the oracle for example, crashed."""

    def l2norm(x: Tensor) -> Tensor:
        return call(x)

    target = Adapter({"l2norm": {"fused": l2norm}})
    case = Case.of("l2norm", "fused", {"B": 1, "H": 1, "D": 3}, (2,), earlier=earlier)
    with pytest.raises((RuntimeError, TypeError), match=told):
        LAWS[law](OPS["l2norm"], case, Subject(target, torch.device("cpu")))
