"""Tests of every recurrence over tokens, whatever it computes.

Values worked out by hand stand beside each page, and tests of `normalize` beside its own.
"""

import inspect
import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

import reference
from reference.arguments import same_dtype
from reference.op import axes

Op = Callable[..., Any]


# Options that have no default or must have this value, and others than the default.
REQUIRED = {"layer_idx": 1, "num_layers": 3, "mini_batch_size": 1}
CHOICES = {"reverse": True, "use_qk_l2norm_in_kernel": True, "activation": "silu"}

# Pages whose results are not integers where the arguments are: constant decays, and exponentials.
# Without a state some of these have seen nothing, which is the logarithm of 0 and no zero.
LOG_STATES = ("abc", "lightnet", "rwkv4", "mlstm", "logcumsumexp")
ROUNDED = (
    "constant_decay", "cyfa", "gsa", "mamba3", "precond", "mesa_net", "ttt_linear", *LOG_STATES,
)  # fmt: skip
GATES = ("g", "gk", "gv", "w", "A", "g_atk", "log_alpha", "log_mu", "log_eta")
NEUTRAL = dict.fromkeys(("beta", "beta_atk", "eta", "erase", "write"), 1.0)
NEUTRAL["log_atk_scale"] = -0.2
SUMS = {"W-1": "L", "K+V+1": "Z", "K+V": "X", "V+1": "Y", "K+1": "I", "V+normalize": "V"}


@dataclass(frozen=True)
class Recurrence:
    """The dims and options of an op, from its signature.

    Args:
        tensors: the letters of the dims of each.
        state: those of its state, without N.
        options: what every call is given.
        choices: what a call may be given besides.
        neutral: the values for which an optional tensor stands when it is left out.
        exact: integers go in and integers come out.
    """

    op: Any
    tensors: dict[str, str]
    state: str
    options: dict[str, Any]
    choices: tuple[dict[str, Any], ...]
    neutral: dict[str, float]
    exact: bool

    @classmethod
    def of(cls, op: Any) -> "Recurrence":
        parameters = inspect.signature(op).parameters
        letters = {name: _letters(p.annotation) for name, p in parameters.items()}
        state, _ = letters.pop("initial_state"), letters.pop("cu_seqlens")
        tensors = {name: dims for name, dims in letters.items() if dims}
        optional = [name for name in tensors if parameters[name].default is None]
        return cls(
            op,
            tensors,
            state[1:],
            options={name: value for name, value in REQUIRED.items() if name in parameters},
            choices=({}, *({name: x} for name, x in CHOICES.items() if name in parameters)),
            neutral={name: NEUTRAL.get(name, 0.0) for name in optional},
            exact=not op.__module__.endswith(ROUNDED),
        )

    @property
    def forms(self) -> tuple[Op, Op]:
        return self.op, self.op.second_form

    @property
    def name(self) -> str:
        return str(self.op.__name__)


def _letters(annotation: Any) -> str:
    return "".join(SUMS.get(dim, dim) for dim in axes(annotation))


def _recurrences() -> Iterator[Recurrence]:
    for name in reference.__all__:
        op = getattr(reference, name)
        names = inspect.signature(op).parameters.keys() if hasattr(op, "second_form") else set()
        if "initial_state" in names:
            yield Recurrence.of(op)


RECURRENCES = list(_recurrences())
# L: W-1, X: K+V, Y: V+1, Z: K+V+1, I: K+1.
SIZES = {
    "B": 2,
    "T": 7,
    "J": 2,
    "P": 2,
    "G": 2,
    "H": 4,
    "K": 5,
    "V": 3,
    "D": 6,
    "W": 4,
    "M": 5,
    "L": 3,
    "X": 8,
    "Y": 4,
    "Z": 9,
    "I": 6,
    "1": 1,
    "2": 2,
}
SMALL = {
    "B": 2,
    "T": 3,
    "J": 2,
    "P": 1,
    "G": 1,
    "H": 2,
    "K": 2,
    "V": 3,
    "D": 2,
    "W": 3,
    "M": 3,
    "L": 2,
    "X": 5,
    "Y": 4,
    "Z": 6,
    "I": 3,
    "1": 1,
    "2": 2,
}

each_form = pytest.mark.parametrize(
    ("op", "form"),
    [pytest.param(op, form, id=form.__name__) for op in RECURRENCES for form in op.forms],
)
each_choice = pytest.mark.parametrize(
    ("op", "choice"),
    [
        pytest.param(op, choice, id="-".join([op.name, *choice]))
        for op in RECURRENCES
        for choice in op.choices
    ],
)
each_packing = pytest.mark.parametrize("lengths", [None, (0, 3, 0, 1, 3)], ids=["dense", "packed"])


def blank(op: Recurrence, sizes: dict[str, int], lengths: tuple[int, ...] | None) -> dict[str, Any]:
    """The shape of each tensor, the state last; `lengths` are those of packed sequences."""
    sizes = {**sizes, "N": sizes["B"]}
    if lengths is not None:
        sizes = {**sizes, "B": 1, "T": sum(lengths), "N": len(lengths)}
    dims = {**op.tensors, "initial_state": "N" + op.state}
    return {name: tuple(sizes[d] for d in letters) for name, letters in dims.items()}


def packing(lengths: tuple[int, ...] | None) -> dict[str, Tensor]:
    if lengths is None:
        return {}
    return {"cu_seqlens": torch.tensor([0, *itertools.accumulate(lengths)])}


def draw(
    op: Recurrence, lengths: tuple[int, ...] | None = None, sizes: dict[str, int] = SIZES
) -> dict[str, Tensor]:
    """Tensors on the domain on which the rule is stable."""
    generator = torch.Generator().manual_seed(0)
    unit = torch.nn.functional.normalize
    tensors = {
        name: torch.randn(*shape, dtype=torch.float64, generator=generator)
        for name, shape in blank(op, sizes, lengths).items()
    }
    for name, x in tensors.items():
        if name in GATES:
            tensors[name] = -x.abs()
        elif name in ("beta_atk", "eta", "theta", "s", "lam"):
            tensors[name] = torch.sigmoid(x)
        elif name in ("dt", "beta"):
            tensors[name] = 2 * torch.sigmoid(x)
        elif name.endswith("_norm_weight"):  # what is normalized is at most 1 long
            tensors[name] = unit(x, dim=-1) / math.sqrt(len(x))
        elif name == "erase":  # one rate for all channels, as the write is
            tensors[name] = torch.sigmoid(x[..., :1]).expand_as(x).clone()
        elif name == "kk" or (name == "k" and {"beta", "erase", "eta", "theta"} & tensors.keys()):
            tensors[name] = unit(x, dim=-1)
    if op.name == "gated_oja_rule":
        tensors["v"] = unit(tensors["v"], dim=-1)
    if op.name.startswith("precond"):  # energies
        tensors["initial_state"][..., -1] = tensors["initial_state"][..., -1].abs()
    if "kk" in tensors:  # one rate for all channels
        tensors["a"] = torch.sigmoid(tensors["a"][..., :1]).expand_as(tensors["a"]).clone()
    if "p" in tensors:  # what is read is taken away, but no more than is left
        tensors["p"] = torch.sigmoid(tensors["p"][..., :1]) * tensors["k"]
        tensors["beta"] = tensors["beta"] / 2
    if "b" in tensors:  # the transition of a delta rule
        direction = unit(tensors["a"], dim=-1)
        tensors["a"] = torch.exp(tensors["gk"]) * direction if "gk" in tensors else direction
        tensors["b"] = -2 * torch.sigmoid(tensors["b"][..., :1]) * direction
    return tensors


def integers(op: Recurrence, lengths: tuple[int, ...] | None) -> dict[str, Tensor]:
    """Small integers, gates that are open or shut, strengths 0, 1 and 2."""
    generator = torch.Generator().manual_seed(1)
    values: dict[str, tuple[float, ...]] = {
        **dict.fromkeys(GATES, (0.0, 0.0, -math.inf)),
        "A": (0.0,),
        **dict.fromkeys(("dt", "beta"), (0.0, 1.0, 2.0)),
    }
    tensors = {}
    for name, shape in blank(op, SIZES, lengths).items():
        each = torch.tensor(values.get(name, (-1.0, 0.0, 1.0)), dtype=torch.float64)
        tensors[name] = each[torch.randint(len(each), shape, generator=generator)]
    return tensors


def magnitude(op: Recurrence, tensors: dict[str, Tensor]) -> float:
    """Return a bound on the norm of every state, write and output, on the domain of `draw`.

    A write is at most the product of the norms of a token's tensors; a state is at most the sum of
    its start and all writes.
    """
    product: float = 1.0
    scalars = ("dt", "beta", "lam", "D", "bias")
    for name in op.tensors:
        if name not in (*GATES, "b", "a", "delta"):
            x = tensors[name]
            norm = x.abs().max() if name in scalars else x.norm(dim=-1).max()
            product *= max(1.0, norm.item())
    start: float = tensors["initial_state"].flatten(1).norm(dim=1).max().item()
    return product * (start + 2 * SIZES["T"])


@each_choice
@each_packing
def test_both_forms_agree_where_the_rule_is_stable(
    op: Recurrence, choice: dict[str, Any], lengths: tuple[int, ...] | None
) -> None:
    """In at most T steps a form takes sums of at most T + K + W terms, each of at most six factors,
    decays among them, whose exponents are sums of T terms. Every norm on the way is below M, no
    step enlarges an earlier error, and no entry of a triangular inverse is above 2. So a form is
    within 2 T (2 T + K + W + 6) u M of the truth, with u = 2^-53. That is coarse, but a wrong
    formula is wrong by more.
    """
    tensors = draw(op, lengths)
    options = {**op.options, **choice, **packing(lengths), "output_final_state": True}
    first, second = (form(**tensors, **options) for form in op.forms)
    T, K, W = (SIZES[d] for d in "TKW")
    bound = 2 * 2 * T * (2 * T + K + W + 6) * 2.0**-53 * magnitude(op, tensors)
    assert bound < 1e-9
    for x, y in zip(first, second, strict=True):
        assert (x - y).abs().max().item() <= bound


@pytest.mark.parametrize("op", [op for op in RECURRENCES if op.exact], ids=lambda op: op.name)
@each_packing
def test_on_integers_both_forms_and_their_gradients_are_equal_to_the_bit(
    op: Recurrence, lengths: tuple[int, ...] | None
) -> None:
    tensors = integers(op, lengths)
    names = [n for n in tensors if n not in (*GATES, "dt")]
    options = {**op.options, **packing(lengths), "output_final_state": True}
    if "scale" in inspect.signature(op.forms[0]).parameters:
        options["scale"] = 2.0
    results = []
    for form in op.forms:
        leaves = {n: x.clone().requires_grad_(n in names) for n, x in tensors.items()}
        o, final_state = form(**leaves, **options)
        total = (o * o.detach().sign()).sum() + (2 * final_state).sum()
        gradients = torch.autograd.grad(total, [leaves[n] for n in names])
        results.append([o, final_state, *gradients])
    assert results[0][0].abs().max() > 1
    for name, x, y in zip(["o", "final_state", *names], *results, strict=True):
        assert x.abs().max() < 2**52
        assert torch.equal(x, x.round()), name
        assert torch.equal(x, y), name


@each_form
@each_packing
def test_gradients_through_output_and_final_state(
    op: Recurrence, form: Op, lengths: tuple[int, ...] | None
) -> None:
    lengths = lengths and (2, 0, 1)
    tensors = draw(op, lengths, SMALL)
    names = list(tensors)
    for choice in op.choices:
        options = {**op.options, **choice, **packing(lengths), "output_final_state": True}

        def function(*values: Tensor, options: dict[str, Any] = options) -> Any:
            return form(**dict(zip(names, values, strict=True)), **options)

        leaves = [x.clone().requires_grad_() for x in tensors.values()]
        # Differences over 1e-6 err by some 2^-53 / 1e-6 = 1e-10. Along unit vectors an element of a
        # Jacobian of 100 x 100 counts for 1/100, so both tolerances are 1/100 of PyTorch's.
        assert torch.autograd.gradcheck(function, leaves, atol=1e-7, rtol=1e-5, fast_mode=True)


@each_form
def test_the_state_of_an_empty_sequence_passes_through(op: Recurrence, form: Op) -> None:
    lengths = (0, 3, 0, 4, 0)
    tensors = draw(op, lengths)
    _, final_state = form(**tensors, **op.options, **packing(lengths), output_final_state=True)
    changed = (final_state != tensors["initial_state"]).flatten(1).any(1)
    assert changed.tolist() == [length > 0 for length in lengths]


@each_form
def test_without_tokens_the_state_passes_through(op: Recurrence, form: Op) -> None:
    tensors = draw(op, None, {**SIZES, "T": 0})
    o, final_state = form(**tensors, **op.options, output_final_state=True)
    assert 0 in o.shape
    assert torch.equal(final_state, tensors["initial_state"])


@each_form
def test_two_calls_that_hand_on_the_state_are_one_call(op: Recurrence, form: Op) -> None:
    tensors = draw(op)
    options = {**op.options, "output_final_state": True}
    whole, final_state = form(**tensors, **options)
    pieces = []
    for cut in (slice(0, 3), slice(3, 4), slice(4, 7)):
        piece = {n: x[:, cut] if "T" in op.tensors.get(n, "") else x for n, x in tensors.items()}
        o, tensors["initial_state"] = form(**piece, **options)
        pieces.append(o)
    torch.testing.assert_close(torch.cat(pieces, 1), whole, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(tensors["initial_state"], final_state, rtol=1e-12, atol=1e-12)


@each_form
def test_packed_sequences_are_separate(op: Recurrence, form: Op) -> None:
    lengths = (0, 3, 0, 1, 3)
    tensors = draw(op, lengths)
    options = {**op.options, "output_final_state": True}
    together, states = form(**tensors, **options, **packing(lengths))
    start = 0
    for n, length in enumerate(lengths):
        cut = slice(start, start + length)
        alone = {n: x[:, cut] if "T" in op.tensors.get(n, "") else x for n, x in tensors.items()}
        alone["initial_state"] = tensors["initial_state"][n : n + 1]
        o, state = form(**alone, **options)
        assert torch.equal(together[:, cut], o)
        assert torch.equal(states[n], state[0])
        start += length


@each_form
def test_what_is_left_out_is_neutral(op: Recurrence, form: Op) -> None:
    tensors = draw(op)
    neutral = {n: torch.full_like(tensors[n], value) for n, value in op.neutral.items()}
    neutral["initial_state"] = torch.zeros_like(tensors["initial_state"])
    if op.name in LOG_STATES:
        del neutral["initial_state"], tensors["initial_state"]
    given = {n: x for n, x in tensors.items() if n not in neutral}
    o, nothing = form(**given, **op.options)
    assert nothing is None
    expected, _ = form(**given, **neutral, **op.options)
    assert torch.equal(o, expected)


@each_form
def test_no_dtype_is_forced(op: Recurrence, form: Op) -> None:
    tensors = draw(op)
    low = {n: x.bfloat16() for n, x in tensors.items()}
    o, state = form(**low, **op.options, output_final_state=True)
    assert (o.dtype, state.dtype) == (torch.bfloat16, torch.bfloat16)
    low["initial_state"] = low["initial_state"].float()
    o, state = form(**low, **op.options, output_final_state=True)
    assert (o.dtype, state.dtype) == (torch.bfloat16, torch.float32)
    o, state = form(**tensors, **op.options, output_final_state=True)
    assert (o.dtype, state.dtype) == (torch.float64, torch.float64)


@each_form
def test_a_state_in_a_narrower_dtype_is_widened_before_anything_else(
    op: Recurrence, form: Op
) -> None:
    tensors = draw(op)
    narrow = tensors["initial_state"].bfloat16()
    options = {**op.options, "output_final_state": True}
    got, want = (
        form(**{**tensors, "initial_state": state}, **options)
        for state in (narrow, narrow.double())
    )
    assert torch.equal(got[0], want[0])
    assert torch.equal(got[1], want[1])


@each_form
def test_a_bad_argument_is_named(op: Recurrence, form: Op) -> None:
    tensors = draw(op)
    first, *others = same_dtype(form)
    state = tensors["initial_state"]
    bad: list[tuple[str, Any, type[Exception]]] = [
        (first, tensors[first].long(), TypeError),
        (first, tensors[first][0], ValueError),
        *((x, tensors[x].float(), TypeError) for x in others),
        *((x, torch.cat([tensors[x]] * 2), ValueError) for x in others),
        ("initial_state", state[:1], ValueError),
        ("initial_state", torch.cat([state, state[..., :1]], -1), ValueError),
        ("cu_seqlens", torch.tensor([0, 7]), ValueError),
        ("output_final_state", 1, TypeError),
    ]
    if "scale" in inspect.signature(form).parameters:
        bad += [("scale", math.nan, ValueError), ("scale", "1", TypeError)]
    if "G" in "".join(op.tensors.values()):
        name = next(n for n, dims in op.tensors.items() if "V" in dims)
        ungrouped = {n: x[:, :, :3] for n, x in tensors.items() if "BTH" in op.tensors.get(n, "")}
        ungrouped |= {n: x[:3] for n, x in tensors.items() if op.tensors.get(n) == "H"}
        ungrouped["initial_state"] = state[:, :3]
        expected = f"{name}: 3 heads, expected a positive multiple of the 2"
        with pytest.raises(ValueError, match=f"^{expected}"):
            form(**{**tensors, **ungrouped}, **op.options)
    for name, value, error in bad:
        argument = "cu_seqlens|initial_state" if name == "cu_seqlens" else name
        with pytest.raises(error, match=f"^({argument}): "):
            form(**{**tensors, **op.options, name: value})
