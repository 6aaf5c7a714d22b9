"""The hand-computed values below share two queries and three keys, K = 5 and V = 7:

    q_1 = (1, 0, 0, 0, 0)    k_j = (log a_j, log b_j, 0, 0, 0)    a = (1, 2, 5)
    q_2 = (0, 1, 0, 0, 0)    v_j = the j-th unit vector           b = (3, 1, 4)

so that at scale 1 the first three entries of an output are the weights of the keys, and the weights
are a / Σ a for query 1 and b / Σ b for query 2. The positions among the keys are p = 1 and 2.
"""

import itertools
import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import reference
from reference.testing import Bad, Form, assert_refused, both_forms_of, draw, each_bad, rows

Setting = tuple[dict[str, Any], tuple[str, ...]]
FORMS: list[Form] = [reference.attention, reference.attention.second_form]
both_forms = both_forms_of(reference.attention)


Q = torch.eye(5, dtype=torch.float64)[None, :2, None]
K = torch.cat([rows([1, 2, 5], [3, 1, 4]).log().T, torch.zeros(3, 3)], dim=1)[None, :, None]
V = torch.eye(7, dtype=torch.float64)[None, :3, None]
LOG2 = rows(math.log(2))


def inputs(
    B: int = 2, T_q: int = 5, T_k: int = 7, H: int = 6, G: int = 2, K: int = 3, V: int = 5
) -> Any:
    """q, k, v and the options that are tensors."""
    q, k, v = draw(0, B, T_q, H, K), draw(1, B, T_k, G, K), draw(2, B, T_k, G, V)
    options = {
        "sink": draw(3, H),
        "alibi_slopes": draw(4, H).abs(),
        "g": -draw(5, B, T_k, H).abs(),
    }
    return q, k, v, options


def assert_weights(form: Form, options: dict[str, Any], first: Any, second: Any) -> None:
    """The weights are `first` and `second`, up to a factor, of a sum that is exp(lse)."""
    o, lse = form(Q, K, V, **{"scale": 1.0, "return_lse": True, **options})
    for i, weights in enumerate((first, second)):
        total = sum(weights)
        expected = rows(*(weight / total for weight in weights[:3]), 0, 0, 0, 0)
        torch.testing.assert_close(o[0, i, 0], expected, rtol=1e-15, atol=1e-15)
        assert lse[0, 0, i].item() == pytest.approx(math.log(total), rel=1e-15)


@both_forms
def test_full_attention_by_hand_and_the_lse_is_a_natural_logarithm(form: Form) -> None:
    assert_weights(form, {}, (1, 2, 5), (3, 1, 4))


@both_forms
def test_the_scale_multiplies_the_logits_by_hand(form: Form) -> None:
    assert_weights(form, {"scale": 2.0}, (1, 4, 25), (9, 1, 16))
    assert_weights(
        form,
        {"scale": -1.00000001},
        *([x**-1.00000001 for x in row] for row in ((1, 2, 5), (3, 1, 4))),
    )
    assert_weights(form, {"scale": 0.0}, (1, 1, 1), (1, 1, 1))
    for scale in (None, -1):
        root = 5**-0.5
        assert_weights(form, {"scale": scale}, (1, 2**root, 5**root), (3**root, 1, 4**root))


@both_forms
def test_causal_is_aligned_at_the_bottom_right_by_hand(form: Form) -> None:
    assert_weights(form, {"causal": True}, (1, 2, 0), (3, 1, 4))


@both_forms
def test_a_window_counts_the_querys_own_key_by_hand(form: Form) -> None:
    assert_weights(form, {"causal": True, "window": 1}, (0, 2, 0), (0, 0, 4))
    assert_weights(form, {"causal": True, "window": 2}, (1, 2, 0), (0, 1, 4))
    assert_weights(form, {"causal": True, "window": 3}, (1, 2, 0), (3, 1, 4))


@both_forms
def test_a_window_without_causal_has_two_sides_by_hand(form: Form) -> None:
    assert_weights(form, {"window": 1}, (0, 2, 0), (0, 0, 4))
    assert_weights(form, {"window": 2}, (1, 2, 5), (0, 1, 4))


@both_forms
def test_a_softcap_squashes_the_scaled_logits_by_hand(form: Form) -> None:
    """tanh(log x) = (x² - 1) / (x² + 1)."""

    def weights(row: Any, scale: float, cap: float) -> list[float]:
        squared = [x ** (2 * scale / cap) for x in row]
        return [math.exp(cap * (y - 1) / (y + 1)) for y in squared]

    for scale, cap in [(1.0, 1.0), (2.0, 1.0), (1.0, 3.0)]:
        options = {"scale": scale, "softcap": cap}
        assert_weights(form, options, *(weights(row, scale, cap) for row in ((1, 2, 5), (3, 1, 4))))


@both_forms
def test_alibi_halves_a_weight_per_token_of_distance_by_hand(form: Form) -> None:
    # Distances from p = 1: 1, 0, 1; from p = 2: 2, 1, 0
    assert_weights(form, {"alibi_slopes": LOG2}, (1 / 2, 2, 5 / 2), (3 / 4, 1 / 2, 4))


@both_forms
def test_a_forgetting_gate_decays_every_earlier_key_by_hand(form: Form) -> None:
    # The gates of tokens j + 1 to p multiply: key 0 is seen by query 1 through 1/2, by query 2
    # through 1/2 · 1/5, and key 1 by query 2 through 1/5. The first gate decays nothing.
    g = rows(1 / 7, 1 / 2, 1 / 5).log()[None, :, None]
    assert_weights(form, {"causal": True, "g": g}, (1 / 2, 2, 0), (3 / 10, 1 / 5, 4))


@both_forms
def test_a_sink_is_one_more_logit_by_hand(form: Form) -> None:
    assert_weights(form, {"sink": rows(math.log(8))}, (1, 2, 5, 8), (3, 1, 4, 8))


@both_forms
def test_the_order_is_scale_softcap_bias_mask_sink_by_hand(form: Form) -> None:
    """A sink, a bias or a gate that were scaled or squashed would move the weights."""
    cap = [math.exp((x**4 - 1) / (x**4 + 1)) for x in (1, 2, 5, 3, 1, 4)]
    options = {
        "scale": 2.0,
        "softcap": 1.0,
        "alibi_slopes": LOG2,
        "causal": True,
        "g": rows(1 / 7, 1 / 2, 1 / 5).log()[None, :, None],
        "window": 2,
        "sink": rows(math.log(8)),
    }
    first = (cap[0] / 4, cap[1], 0, 8)
    second = (0, cap[4] / 10, cap[5], 8)
    assert_weights(form, options, first, second)


@both_forms
def test_query_heads_read_key_heads_in_consecutive_groups(form: Form) -> None:
    q, k, v, options = inputs()
    o, lse = form(q, k, v, causal=True, return_lse=True, **options)
    for head, kv_head in enumerate([0, 0, 0, 1, 1, 1]):
        one = slice(head, head + 1)
        alone, alone_lse = form(
            q[:, :, one],
            k[:, :, kv_head, None],
            v[:, :, kv_head, None],
            causal=True,
            return_lse=True,
            sink=options["sink"][one],
            alibi_slopes=options["alibi_slopes"][one],
            g=options["g"][:, :, one],
        )
        torch.testing.assert_close(o[:, :, one], alone, rtol=1e-14, atol=1e-14)
        torch.testing.assert_close(lse[:, one], alone_lse, rtol=1e-14, atol=1e-14)


@both_forms
@pytest.mark.parametrize("with_sink", [False, True])
@pytest.mark.parametrize("T_k", [0, 2])
def test_a_row_that_sees_no_key_is_zero_with_the_sink_as_its_lse_and_no_gradient(
    form: Form, T_k: int, with_sink: bool
) -> None:
    q, k, v, options = inputs(T_q=5, T_k=T_k)
    leaves = [x.requires_grad_() for x in (q, k, v, options["sink"], options["g"])]
    o, lse = form(
        q,
        k,
        v,
        causal=True,
        softcap=2.0,
        alibi_slopes=options["alibi_slopes"],
        g=options["g"],
        sink=options["sink"] if with_sink else None,
        return_lse=True,
    )
    blind = 5 - T_k
    assert torch.equal(o[:, :blind], torch.zeros_like(o[:, :blind]))
    expected = options["sink"] if with_sink else torch.full((6,), -math.inf, dtype=torch.float64)
    assert torch.equal(lse[..., :blind], expected[:, None].expand(2, 6, blind))
    assert o.isfinite().all()

    if not o.requires_grad:
        return  # nothing was read but the shapes
    gradients = torch.autograd.grad(
        o.sum() + lse.sum(), leaves, allow_unused=True, materialize_grads=True, retain_graph=True
    )
    assert all(gradient.isfinite().all() for gradient in gradients)
    assert torch.equal(gradients[0][:, :blind], torch.zeros_like(q[:, :blind]))
    gradients = torch.autograd.grad(
        o[:, :blind].sum(), leaves, allow_unused=True, materialize_grads=True
    )
    assert all(torch.equal(gradient, torch.zeros_like(gradient)) for gradient in gradients)


@both_forms
@pytest.mark.parametrize("closed", [-math.inf, -1e4, -1e30])
def test_a_closed_gate_starts_a_sequence_anew_and_leaves_finite_gradients(
    form: Form, closed: float
) -> None:
    q, k, v, options = inputs(B=1, T_q=7)
    g = options["g"].clone()
    g[:, 3] = closed
    leaves = [x.requires_grad_() for x in (q, k, v, g)]
    o, lse = form(q, k, v, causal=True, g=g, return_lse=True)
    expected, expected_lse = reference.attention(
        q, k, v, causal=True, g=g, return_lse=True, cu_seqlens=torch.tensor([0, 3, 7])
    )
    torch.testing.assert_close(o, expected, rtol=1e-14, atol=1e-14)
    torch.testing.assert_close(lse, expected_lse, rtol=1e-14, atol=1e-14)
    gradients = torch.autograd.grad(o.sum() + lse.sum(), leaves)
    assert all(gradient.isfinite().all() for gradient in gradients)
    assert torch.equal(gradients[3][:, 3], torch.zeros_like(g[:, 3]))


@both_forms
def test_small_gates_behind_a_large_one_keep_their_digits(form: Form) -> None:
    """A difference of prefix sums would round the last gate to a multiple of 2^-40."""
    q = torch.zeros(1, 3, 1, 1, dtype=torch.float64)
    v = rows(0, 1, 0)[None, :, None, None]
    o, _ = form(q, q, v, causal=True, g=rows(0, -1e4, -0.1)[None, :, None])
    weight = math.exp(-0.1)
    assert o[0, 2, 0, 0].item() == pytest.approx(weight / (1 + weight), rel=4e-16)


@both_forms
@pytest.mark.parametrize("with_sink", [False, True])
def test_large_logits_choose_one_key_and_have_finite_gradients(form: Form, with_sink: bool) -> None:
    q, k, v, options = inputs()
    leaves = [x.requires_grad_() for x in (q, k, v, options["sink"])]
    sink = options["sink"] if with_sink else None
    o, lse = form(q, k, v, scale=1e6, sink=sink, return_lse=True)
    logits = 1e6 * torch.einsum("bihk,bjhk->bhij", q, k.repeat_interleave(3, 2))
    largest = logits.amax(-1)
    if sink is not None:
        largest = torch.maximum(largest, sink[:, None])
    torch.testing.assert_close(lse, largest)
    for gradient in torch.autograd.grad(
        o.sum() + lse.sum(), leaves, allow_unused=True, materialize_grads=True
    ):
        assert gradient.isfinite().all()


@both_forms
def test_a_sink_of_minus_infinity_is_no_sink_and_gets_no_gradient(form: Form) -> None:
    q, k, v, _ = inputs(T_k=2)
    sink = torch.full((6,), -math.inf, dtype=torch.float64, requires_grad=True)
    o, lse = form(q, k, v, causal=True, sink=sink, return_lse=True)
    plain, plain_lse = form(q, k, v, causal=True, return_lse=True)
    assert torch.equal(o, plain)
    assert torch.equal(lse, plain_lse)
    (gradient,) = torch.autograd.grad(o.sum() + lse.sum(), [sink])
    assert torch.equal(gradient, torch.zeros_like(sink))


@both_forms
def test_packed_sequences_are_separate_ones(form: Form) -> None:
    q, k, v, options = inputs(B=1, T_q=6, T_k=7)
    boundaries = [0, 1, 1, 4, 6], [0, 3, 5, 5, 7]
    cu_seqlens, cu_seqlens_k = (torch.tensor(x, dtype=torch.int32) for x in boundaries)
    g = options.pop("g")
    o, lse = form(
        q,
        k,
        v,
        causal=True,
        g=g,
        return_lse=True,
        cu_seqlens=cu_seqlens,
        cu_seqlens_k=cu_seqlens_k,
        **options,
    )
    assert lse.shape == (1, 6, 6)
    for n in range(4):
        i, j = (slice(x[n], x[n + 1]) for x in boundaries)
        alone = form(q[:, i], k[:, j], v[:, j], causal=True, g=g[:, j], return_lse=True, **options)
        assert torch.equal(o[:, i], alone[0])
        assert torch.equal(lse[..., i], alone[1])


def settings(*, small: bool = False) -> Iterator[Setting]:
    """Every option with every other, a few values each; the gate with `causal` alone."""
    windows = [None, 2] if small else [None, 1, 3, 50]
    for causal, window, softcap, tensors in itertools.product(
        [False, True], windows, [None, 1.5], [(), ("sink",), ("alibi_slopes", "sink", "g")]
    ):
        names = tuple(name for name in tensors if name != "g" or causal)
        yield {"causal": causal, "window": window, "softcap": softcap}, names


def label(setting: Setting) -> str:
    options, names = setting
    return "-".join([*(f"{name}{value}" for name, value in options.items() if value), *names])


@pytest.mark.parametrize("T_q", [3, 7, 9])
@pytest.mark.parametrize("setting", list(settings()), ids=label)
def test_both_forms_agree(setting: Setting, T_q: int) -> None:
    """With u = 2^-53, S the largest |scale| |q|·|k| + |bias| + |sink| and n = T_k + 1 terms: a
    logit, its bias summed over up to T_k gates, is within (K + T_k + 8) u S of the truth; a weight
    by twice that relative to itself, and n + 8 roundings of exponentials and sums more; the online
    form adds n rescalings, whose exponents telescope to 2 S and are each off by one unit. With
    e = (4 (K + T_k + 8) (S + 1) + 2 n) u an output is within e Y, Y the op on |v|, and an lse
    within e (1 + |lse|).
    """
    options, names = setting
    q, k, v, tensors = inputs(T_q=T_q)
    options = {**options, **{name: tensors[name] for name in names}, "return_lse": True}
    (o1, lse1), (o2, lse2) = (form(q, k, v, **options) for form in FORMS)
    Y, _ = reference.attention(q, k, v.abs(), **options)
    heads = k.abs().repeat_interleave(3, 2)
    S = torch.einsum("bihk,bjhk->bhij", q.abs(), heads).max() * 3**-0.5
    for name, longest in {"sink": 1, "alibi_slopes": 9, "g": 7}.items():
        if name in names:
            S = S + longest * tensors[name].abs().max()
    error = (4 * (3 + 7 + 8) * (S.item() + 1) + 2 * 8) * 2.0**-53
    assert ((o1 - o2).abs() <= 2 * error * Y).all()
    assert torch.equal(lse1 == -math.inf, lse2 == -math.inf)
    seen = lse1 != -math.inf
    assert ((lse1 - lse2).abs()[seen] <= 2 * error * (1 + lse1.abs()[seen])).all()


@both_forms
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("setting", list(settings(small=True)), ids=label)
def test_gradients_through_output_and_lse(form: Form, setting: Setting, packed: bool) -> None:
    options, names = setting
    q, k, v, tensors = inputs(B=1, T_q=4, T_k=3, H=2, G=1, K=2, V=3)
    if packed:
        options = {
            **options,
            "cu_seqlens": torch.tensor([0, 1, 4]),
            "cu_seqlens_k": torch.tensor([0, 2, 3]),
        }
    if "alibi_slopes" in names:
        options = {**options, "alibi_slopes": tensors["alibi_slopes"]}
    learned = {name: tensors[name] for name in names if name != "alibi_slopes"}
    leaves = [x.requires_grad_() for x in (q, k, v, *learned.values())]

    def function(q: Tensor, k: Tensor, v: Tensor, *values: Any) -> Any:
        given = dict(zip(learned, values, strict=True))
        o, lse = form(q, k, v, return_lse=True, **options, **given)
        # A difference quotient of -inf is NaN; those rows have a test of their own.
        return o, torch.where(lse == -math.inf, 0.0, lse)

    assert torch.autograd.gradcheck(function, leaves)


@both_forms
def test_the_slopes_are_constants(form: Form) -> None:
    q, k, v, options = inputs()
    slopes = options["alibi_slopes"].requires_grad_()
    assert not form(q, k, v, alibi_slopes=slopes)[0].requires_grad


@both_forms
def test_the_lse_is_returned_only_when_asked_for_and_changes_nothing(form: Form) -> None:
    q, k, v, _ = inputs()
    o, lse = form(q, k, v)
    assert lse is None
    with_lse, lse = form(q, k, v, return_lse=True)
    assert torch.equal(o, with_lse)
    assert o.shape == (2, 5, 6, 5)
    assert lse.shape == (2, 6, 5)


@both_forms
def test_no_dtype_is_forced(form: Form) -> None:
    q, k, v, options = inputs()
    for dtype in (torch.bfloat16, torch.float32, torch.float64):
        narrow = [x.to(dtype) for x in (q, k, v)]
        o, lse = form(*narrow, return_lse=True)
        assert (o.dtype, lse.dtype) == (dtype, dtype)
        o, lse = form(*narrow, sink=options["sink"].float(), return_lse=True)
        assert (o.dtype, lse.dtype) == (dtype, torch.promote_types(dtype, torch.float32))


q, k, v, tensors = inputs()
BAD: dict[str, Bad] = {
    "rank": ({"q": q[0]}, ValueError, "q: float64[5, 6, 3], expected [B, T_q, H, K]"),
    "key dim": ({"k": k[..., :2]}, ValueError, "k: float64[2, 7, 2, 2], expected [B, T_k, G, K]"),
    "batch": ({"k": k[:1]}, ValueError, "k: float64[1, 7, 2, 3], expected [B, T_k, G, K] with B=2"),
    "kv heads": ({"v": v[:, :, :1]}, ValueError, "v: float64[2, 7, 1, 5], expected [B, T_k, G, V]"),
    "keys": ({"v": v[:, :6]}, ValueError, "v: float64[2, 6, 2, 5], expected [B, T_k, G, V]"),
    "groups": (
        {"q": q[:, :, :5]},
        ValueError,
        "q: 5 heads, expected a positive multiple of the 2 heads",
    ),
    "no heads": (
        {"k": k[:, :, :0], "v": v[:, :, :0]},
        ValueError,
        "q: 6 heads, expected a positive multiple of the 0 heads",
    ),
    "integers": ({"q": q.long()}, TypeError, "q: int64[2, 5, 6, 3], expected float"),
    "dtypes": ({"v": v.float()}, TypeError, "v: float32[2, 7, 2, 5], expected float64"),
    "scale": ({"scale": math.nan}, ValueError, "scale: nan, expected a finite number"),
    "window 0": ({"window": 0}, ValueError, "window: 0, expected at least 1"),
    "window 2.5": ({"window": 2.5}, TypeError, "window: 2.5 (float), expected int or None"),
    "window True": ({"window": True}, TypeError, "window: True (bool), expected int or None"),
    "softcap 0": ({"softcap": 0.0}, ValueError, "softcap: 0.0, expected a positive finite"),
    "softcap -1": ({"softcap": -1}, ValueError, "softcap: -1, expected a positive finite"),
    "softcap inf": ({"softcap": math.inf}, ValueError, "softcap: inf, expected a positive finite"),
    "softcap nan": ({"softcap": math.nan}, ValueError, "softcap: nan, expected a positive finite"),
    "sink": ({"sink": tensors["sink"][:2]}, ValueError, "sink: float64[2], expected [H] with H=6"),
    "slopes": (
        {"alibi_slopes": tensors["alibi_slopes"][:2]},
        ValueError,
        "alibi_slopes: float64[2], expected [H] with H=6",
    ),
    "g": (
        {"g": tensors["g"][:, :5], "causal": True},
        ValueError,
        "g: float64[2, 5, 6], expected [B, T_k, H] with B=2, T_k=7, H=6",
    ),
    "g without causal": ({"g": tensors["g"]}, ValueError, "g: given with causal=False, expected"),
    "keys alone packed": (
        {"cu_seqlens_k": torch.tensor([0, 3, 7])},
        ValueError,
        "cu_seqlens_k: given without cu_seqlens, expected cu_seqlens as well",
    ),
    "packed batch": ({"cu_seqlens": torch.tensor([0, 5])}, ValueError, "cu_seqlens: given with"),
    "causal": ({"causal": 1}, TypeError, "causal: 1 (int), expected bool"),
}
BAD |= {
    f"packed {number}": (
        {
            "q": q[:1],
            "k": k[:1],
            "v": v[:1],
            "cu_seqlens": torch.tensor(queries),
            "cu_seqlens_k": None if keys is None else torch.tensor(keys),
        },
        ValueError,
        message,
    )
    for number, (queries, keys, message) in enumerate(
        [
            ([0, 2, 5], None, "cu_seqlens (for the keys): ends at 5, expected T=7"),
            ([0, 2, 5], [0, 7], "cu_seqlens_k: int64[2], expected [N+1] with N=2"),
            ([0, 2, 5], [0, 3, 6], "cu_seqlens_k: ends at 6, expected T=7"),
            ([0, 2, 5], [1, 3, 7], "cu_seqlens_k: starts at 1, expected 0"),
            ([0, 2, 5], [0, 8, 7], "cu_seqlens_k: decreases from 8 to 7"),
            ([0, 6, 5], [0, 3, 7], "cu_seqlens: decreases from 6 to 5"),
            ([0, 2, 4], [0, 3, 7], "cu_seqlens: ends at 4, expected T=5"),
        ]
    )
}


@both_forms
@each_bad(BAD)
def test_a_bad_argument_is_named(form: Form, bad: Bad) -> None:
    assert_refused(bad, form, q=q, k=k, v=v)
