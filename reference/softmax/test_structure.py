"""Masks, biases and structured masks of attention.

The values by hand have the weights of `test_attention.py`: (1, 2, 5) of query 1 at position 1, and
(3, 1, 4) of query 2 at position 2.
"""

import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor

import reference
from reference.softmax.structure import Structure
from reference.softmax.test_attention import FORMS, LOG2, assert_weights, both_forms, inputs
from reference.testing import Bad, Form, assert_refused, draw, each_bad, rows

HIDDEN = -math.inf


def integers(*values: Any) -> Tensor:
    return torch.tensor(values)


@both_forms
def test_a_bias_multiplies_a_weight_by_its_exponential_by_hand(form: Form) -> None:
    bias = LOG2 * rows([1, 0, -1], [0, 2, HIDDEN])[None, None]
    assert_weights(form, {"bias": bias}, (2, 2, 5 / 2), (3, 4, 0))
    assert_weights(form, {"bias": bias[..., :1, :]}, (2, 2, 5 / 2), (6, 1, 2))
    assert_weights(form, {"bias": bias[..., :1], "causal": True}, (2, 4, 0), (3, 1, 4))


@both_forms
def test_a_bias_is_added_after_the_softcap_and_is_not_scaled_by_hand(form: Form) -> None:
    cap = [math.exp((x**4 - 1) / (x**4 + 1)) for x in (1, 2, 5, 3, 1, 4)]
    options = {"scale": 2.0, "softcap": 1.0, "bias": LOG2.expand(1, 1, 2, 3)}
    options["sink"] = rows(math.log(8))
    assert_weights(form, options, (*(2 * x for x in cap[:3]), 8), (*(2 * x for x in cap[3:]), 8))


@both_forms
def test_a_mask_hides_a_pair_where_it_is_false_by_hand(form: Form) -> None:
    mask = torch.tensor([[True, False, True], [False, True, True]])[None, None]
    assert_weights(form, {"mask": mask}, (1, 0, 5), (0, 1, 4))
    assert_weights(form, {"mask": mask, "causal": True}, (1, 0, 0), (0, 1, 4))
    assert_weights(form, {"mask": mask[..., 1:, :]}, (0, 2, 5), (0, 1, 4))


# The rules of two queries at positions 1 and 2 of three keys, and the keys that they leave.
BY_HAND: dict[str, tuple[dict[str, Any], str, str]] = {
    "documents": ({"document_ids": integers([7, 7, 2])}, "110", "001"),
    "documents apart": ({"document_ids": integers([2, 7, 2])}, "010", "101"),
    "prefix 0": ({"prefix": integers(0)}, "110", "111"),
    "prefix 3": ({"prefix": integers(3)}, "111", "111"),
    "chunk 2": ({"chunk": 2}, "110", "001"),
    "chunk 1": ({"chunk": 1}, "010", "001"),
    "block causal 2": ({"block_causal": 2}, "110", "111"),
    "block causal 1": ({"block_causal": 1}, "110", "111"),
    "block causal 3": ({"block_causal": 3}, "111", "111"),
    "dilation 2": ({"dilation": 2}, "010", "101"),
    "roots": ({"parents": integers(-1, -1)}, "110", "101"),
    "a branch": ({"parents": integers(-1, 0)}, "110", "111"),
    "blocks": ({"blocks": integers([[1, 0]]).bool(), "block_size": 2}, "110", "110"),
    "blocks of 1": (
        {"blocks": integers([[0, 1, 1], [1, 0, 1]]).bool(), "block_size": 1},
        "011",
        "101",
    ),
    "two rules": ({"chunk": 2, "dilation": 2}, "010", "001"),
}


@both_forms
@pytest.mark.parametrize(("structure", "first", "second"), BY_HAND.values(), ids=BY_HAND)
def test_a_structure_by_hand(
    form: Form, structure: dict[str, Any], first: str, second: str
) -> None:
    weights = [
        [x * int(seen) for x, seen in zip(row, seeing, strict=True)]
        for row, seeing in (((1, 2, 5), first), ((3, 1, 4), second))
    ]
    assert_weights(form, {"structure": structure}, *weights)


@both_forms
def test_a_tree_sees_the_prefix_and_ancestors_by_hand(form: Form) -> None:
    """With queries and keys of 0 the output is the mean of the values seen: of unit vectors, one
    weight for each key."""
    # 0 ── 1 ── 3       after two keys of a prefix
    #  └── 2 ── 4
    # 5
    parents = integers(-1, 0, 0, 1, 2, -1)
    seen = ["11100000", "11110000", "11101000", "11110100", "11101010", "11000001"]
    q, k = (torch.zeros(1, n, 1, 1, dtype=torch.float64) for n in (6, 8))
    v = torch.eye(8, dtype=torch.float64)[None, :, None]
    o, _ = form(q, k, v, structure={"parents": parents})
    expected = torch.stack([rows(*map(int, row)) / row.count("1") for row in seen])
    torch.testing.assert_close(o[0, :, 0], expected, rtol=1e-15, atol=1e-15)


def structures(T_q: int, T_k: int) -> dict[str, dict[str, Any]]:
    """Each rule for two sequences of H = 6 heads, and two together."""
    generator = torch.Generator().manual_seed(7)
    ids = torch.randint(3, (2, T_k), generator=generator)
    table = torch.rand(6, -(-T_q // 3), -(-T_k // 3), generator=generator) < 0.6
    found: dict[str, dict[str, Any]] = {
        "documents": {"document_ids": ids},
        "prefix": {"prefix": torch.tensor([0, min(4, T_k)], dtype=torch.int32)},
        "chunk": {"chunk": 3},
        "block causal": {"block_causal": 3},
        "dilation": {"dilation": 2},
        "blocks": {"blocks": table, "block_size": 3},
        "blocks of all heads": {"blocks": table[:1], "block_size": 3},
        "two rules": {"document_ids": ids, "block_causal": 2},
    }
    if T_q <= T_k:
        behind = torch.randint(1, 4, (T_q,), generator=generator)
        found["tree"] = {"parents": (torch.arange(T_q) - behind).clamp(min=-1)}
    return found


def assert_forms_agree(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> None:
    """Bound the error as `test_both_forms_agree` does; a bias adds its largest finite size."""
    (o1, lse1), (o2, lse2) = (form(q, k, v, return_lse=True, **options) for form in FORMS)
    Y, _ = reference.attention(q, k, v.abs(), **options)
    heads = k.abs().repeat_interleave(q.shape[2] // k.shape[2], 2)
    S = (torch.einsum("bihk,bjhk->bhij", q.abs(), heads).amax() * q.shape[-1] ** -0.5).item()
    if "bias" in options:
        S += options["bias"].nan_to_num(neginf=0).abs().max().item()
    error = (4 * (q.shape[-1] + k.shape[1] + 8) * (S + 1) + 2 * (k.shape[1] + 1)) * 2.0**-53
    assert ((o1 - o2).abs() <= 2 * error * Y).all()
    assert torch.equal(lse1 == HIDDEN, lse2 == HIDDEN)
    seen = lse1 != HIDDEN
    assert ((lse1 - lse2).abs()[seen] <= 2 * error * (1 + lse1.abs()[seen])).all()


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("T_q", [1, 5, 7, 10])
@pytest.mark.parametrize("name", structures(7, 7))
def test_both_forms_agree_on_structures(name: str, T_q: int, causal: bool) -> None:
    q, k, v, _ = inputs(T_q=T_q)
    every = structures(T_q, 7)
    if name in every:
        assert_forms_agree(q, k, v, causal=causal, structure=every[name])


def masks(T_q: int, T_k: int) -> tuple[Tensor, Tensor]:
    """A mask and a bias with a row that sees nothing and a column that nobody sees."""
    generator = torch.Generator().manual_seed(8)
    mask = torch.rand(2, 6, T_q, T_k, generator=generator) < 0.7
    bias = draw(9, 2, 6, T_q, T_k)
    mask[..., 1, :] = False
    bias[..., 2, :] = bias[..., 3] = HIDDEN
    return mask, bias


BROADCAST = [*itertools.product([False, True], repeat=4)]


def narrow(x: Tensor, dims: tuple[bool, ...]) -> Tensor:
    """The tensor with a size of 1 where `dims` says."""
    return x[tuple(slice(1, 2) if one else slice(None) for one in dims)]


@pytest.mark.parametrize("dims", BROADCAST)
@pytest.mark.parametrize("causal", [False, True])
def test_both_forms_agree_on_masks_and_biases(dims: tuple[bool, ...], causal: bool) -> None:
    q, k, v, _ = inputs()
    mask, bias = masks(5, 7)
    assert_forms_agree(q, k, v, causal=causal, mask=narrow(mask, dims), bias=bias)
    assert_forms_agree(q, k, v, causal=causal, mask=mask, bias=narrow(bias, dims))


@both_forms
@pytest.mark.parametrize("dims", BROADCAST)
def test_a_size_of_1_stands_for_all(form: Form, dims: tuple[bool, ...]) -> None:
    q, k, v, _ = inputs()
    mask, bias = (narrow(x, dims) for x in masks(5, 7))
    bias = bias.clone().requires_grad_()
    whole = bias.detach().expand(2, 6, 5, 7).clone().requires_grad_()
    o, lse = form(q, k, v, mask=mask, bias=bias, return_lse=True)
    want, want_lse = form(q, k, v, mask=mask.expand(2, 6, 5, 7), bias=whole, return_lse=True)
    assert torch.equal(o, want)
    assert torch.equal(lse, want_lse)
    weights = draw(10, *o.shape)
    (got,) = torch.autograd.grad((o * weights).sum(), [bias])
    (each,) = torch.autograd.grad((want * weights).sum(), [whole])
    axes = [axis for axis, one in enumerate(dims) if one]
    expected = each.sum(axes, keepdim=True) if axes else each
    torch.testing.assert_close(got, expected, rtol=1e-13, atol=1e-13)


@both_forms
def test_a_bias_of_minus_infinity_is_a_mask_and_gets_no_gradient(form: Form) -> None:
    q, k, v, _ = inputs()
    mask, _ = masks(5, 7)
    bias = torch.where(mask, 0.0, HIDDEN).double().requires_grad_()
    leaves = [x.requires_grad_() for x in (q, k, v)]
    o, lse = form(q, k, v, bias=bias, return_lse=True)
    want, want_lse = form(q, k, v, mask=mask, return_lse=True)
    assert torch.equal(o, want)
    assert torch.equal(lse, want_lse)
    assert torch.equal(o[:, 1], torch.zeros_like(o[:, 1]))
    assert (lse[..., 1] == HIDDEN).all()
    got = torch.autograd.grad(o.sum() + lse.sum(), [*leaves, bias])
    expected = torch.autograd.grad(want.sum() + want_lse.sum(), leaves)
    for a, b in zip(got, expected, strict=False):
        assert torch.equal(a, b)
    assert not got[3][~mask].any()
    assert got[3][mask].any()


@both_forms
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("dims", [(False,) * 4, (True,) * 4, (True, False, True, False)])
def test_gradients_with_a_bias_agree_with_finite_differences(
    form: Form, dims: tuple[bool, ...], packed: bool
) -> None:
    q, k, v, _ = inputs(B=1, T_q=4, T_k=3, H=2, G=1, K=2, V=3)
    bias = narrow(draw(3, 2, 2, 4, 3), (True, *dims[1:]))
    mask = torch.tensor([True, True, False, True])[None, None, :, None]
    options: dict[str, Any] = {"mask": mask, "structure": {"chunk": 2}}
    if packed:
        options["cu_seqlens"], options["cu_seqlens_k"] = integers(0, 1, 4), integers(0, 2, 3)
    leaves = [x.requires_grad_() for x in (q, k, v, bias)]

    def function(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Any:
        o, lse = form(q, k, v, bias=bias, return_lse=True, **options)
        return o, torch.where(lse == HIDDEN, 0.0, lse)

    assert torch.autograd.gradcheck(function, leaves)


@both_forms
def test_packed_sequences_have_their_part_of_each_mask(form: Form) -> None:
    q, k, v, _ = inputs(B=1, T_q=6, T_k=8)
    boundaries = [0, 1, 1, 4, 6], [0, 3, 5, 5 + 3, 8]
    cu_seqlens, cu_seqlens_k = (torch.tensor(x) for x in boundaries)
    mask, bias = (x[:1] for x in masks(6, 8))
    ids, prefix = integers([0, 1, 1, 0, 0, 1, 0, 1]), integers(1, 2, 0, 0)
    options = {"mask": mask, "bias": bias, "return_lse": True}
    structure: dict[str, Any] = {"document_ids": ids, "prefix": prefix, "dilation": 2}
    ends = {"cu_seqlens": cu_seqlens, "cu_seqlens_k": cu_seqlens_k}
    o, lse = form(q, k, v, structure=structure, **options, **ends)
    for n in range(4):
        i, j = (slice(x[n], x[n + 1]) for x in boundaries)
        own = {"document_ids": ids[:, j], "prefix": prefix[n, None], "dilation": 2}
        alone = {**options, "mask": mask[:, :, i, j], "bias": bias[:, :, i, j], "structure": own}
        want, want_lse = form(q[:, i], k[:, j], v[:, j], **alone)
        assert torch.equal(o[:, i], want)
        assert torch.equal(lse[..., i], want_lse)


@both_forms
def test_documents_are_packed_sequences(form: Form) -> None:
    q, k, v, _ = inputs(B=1, T_q=7)
    ids = integers([0, 0, 0, 1, 2, 2, 2])
    for causal in (False, True):
        o, _ = form(q, k, v, causal=causal, structure={"document_ids": ids})
        want, _ = form(q, k, v, causal=causal, cu_seqlens=integers(0, 3, 4, 7))
        torch.testing.assert_close(o, want, rtol=1e-14, atol=1e-14)


@both_forms
def test_packed_trees_number_their_own_queries(form: Form) -> None:
    q, k, v, _ = inputs(B=1, T_q=5, T_k=7)
    ends = {"cu_seqlens": integers(0, 3, 5), "cu_seqlens_k": integers(0, 4, 7)}
    o, _ = form(q, k, v, structure={"parents": integers(-1, 0, 0, -1, -1)}, **ends)
    for i, j, parents in ((slice(3), slice(4), (-1, 0, 0)), (slice(3, 5), slice(4, 7), (-1, -1))):
        alone, _ = form(q[:, i], k[:, j], v[:, j], structure={"parents": integers(*parents)})
        assert torch.equal(o[:, i], alone)


@both_forms
def test_the_lse_has_the_dtype_of_a_wide_bias(form: Form) -> None:
    q, k, v, _ = inputs()
    narrow = [x.bfloat16() for x in (q, k, v)]
    o, lse = form(*narrow, bias=masks(5, 7)[1].float(), return_lse=True)
    assert (o.dtype, lse.dtype) == (torch.bfloat16, torch.float32)


q, k, v, _ = inputs()
MASK, BIAS = masks(5, 7)
IDS = torch.zeros(2, 7, dtype=torch.int64)
BAD: dict[str, Bad] = {
    "mask of floats": ({"mask": BIAS}, TypeError, "mask: float64[2, 6, 5, 7], expected bool"),
    "mask of two queries": (
        {"mask": MASK[:, :, :2]},
        ValueError,
        "mask: bool[2, 6, 2, 7], expected [#B, #H, #T_q, #T_k] with B=2, H=6, T_q=5, T_k=7",
    ),
    "mask of another rank": ({"mask": MASK[0]}, ValueError, "mask: bool[6, 5, 7], expected"),
    "bias of integers": ({"bias": MASK.long()}, TypeError, "bias: int64[2, 6, 5, 7], expected fl"),
    "bias of two heads": ({"bias": BIAS[:, :2]}, ValueError, "bias: float64[2, 2, 5, 7], expected"),
}
BAD |= {
    f"{number}: {structure}": ({"structure": structure}, error, message)
    for number, (structure, error, message) in enumerate(
        [
            ("chunk", TypeError, "structure: 'chunk' (str), expected Structure or None"),
            ({"chunks": 2}, ValueError, "structure: 'chunks', expected some of document_ids, pre"),
            ({"chunk": 0}, ValueError, "structure: chunk: 0, expected at least 1"),
            ({"chunk": 2.0}, TypeError, "structure: chunk: 2.0 (float), expected int"),
            ({"dilation": True}, TypeError, "structure: dilation: True (bool), expected int"),
            ({"document_ids": [0]}, TypeError, "structure: document_ids: [0] (list), expected a t"),
            ({"document_ids": IDS.double()}, TypeError, "structure: document_ids: torch.float64"),
            ({"document_ids": IDS[:1]}, ValueError, "structure: document_ids: [1, 7], expected [2"),
            ({"document_ids": IDS - 3}, ValueError, "structure: document_ids: -3, expected at le"),
            ({"prefix": integers(1)}, ValueError, "structure: prefix: [1], expected [2]"),
            ({"prefix": integers(1, 8)}, ValueError, "structure: prefix: 8 at 1, expected 0 to 7"),
            ({"prefix": integers(-1, 1)}, ValueError, "structure: prefix: -1 at 0, expected 0 to"),
            ({"parents": integers(-1, 0)}, ValueError, "structure: parents: [2], expected [5]"),
            (
                {"parents": integers(-1, 2, 0, 0, 0)},
                ValueError,
                "structure: parents: 2 at 1, expected -1 or an earlier query, at most 0",
            ),
            (
                {"parents": integers(-1, 0, 2, 0, 0)},
                ValueError,
                "structure: parents: 2 at 2, expected -1 or an earlier query, at most 1",
            ),
            ({"parents": integers(-2, 0, 0, 0, 0)}, ValueError, "structure: parents: -2 at 0"),
            ({"block_size": 2}, ValueError, "structure: blocks and block_size: one given"),
            (
                {"blocks": MASK[0, :, :2, :4], "block_size": 3},
                ValueError,
                "structure: blocks: [6, 2, 4], expected [6, 2, 3], or 1 head",
            ),
            (
                {"blocks": MASK[0, :2, :2, :3], "block_size": 3},
                ValueError,
                "structure: blocks: [2, 2, 3], expected [6, 2, 3], or 1 head",
            ),
            (
                {"blocks": BIAS[0, :, :2, :3], "block_size": 3},
                TypeError,
                "structure: blocks: torch.float64, expected bool",
            ),
        ]
    )
}


@both_forms
@each_bad(BAD)
def test_a_bad_mask_is_named(form: Form, bad: Bad) -> None:
    assert_refused(bad, form, q=q, k=k, v=v)


def test_what_needs_a_dense_batch_or_a_key_of_each_query_says_so() -> None:
    one: dict[str, Any] = {"cu_seqlens": integers(0, 5), "cu_seqlens_k": integers(0, 7)}
    table: Structure = {"blocks": MASK[0, :, :2, :3], "block_size": 3}
    with pytest.raises(ValueError, match="structure: blocks: given with cu_seqlens"):
        reference.attention(q[:1], k[:1], v[:1], structure=table, **one)
    tree: Structure = {"parents": integers(-1, 0, 0, 0, 0)}
    with pytest.raises(ValueError, match="structure: parents: of 5 queries with 3 keys"):
        reference.attention(q, k[:, :3], v[:, :3], structure=tree)
