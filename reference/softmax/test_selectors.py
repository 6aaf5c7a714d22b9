"""NSA, MoBA, DSA and MSA. By hand: with q = 1, k_j = log a_j and v_j the j-th unit vector, the
output is the weights of the keys, a_j over the sum of those that are seen.
"""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import reference
from reference.testing import Form, both_forms_of, draw, rows


def tokens(*a: float) -> tuple[Tensor, Tensor, Tensor]:
    T = len(a)
    q = torch.ones(1, T, 1, 1, dtype=torch.float64)
    v = torch.eye(T, dtype=torch.float64)[None, :, None]
    return q, rows(*a).log()[None, :, None, None], v


def assert_row(o: Tensor, query: int, *weights: float, head: int = 0) -> None:
    expected = rows(*weights) / sum(weights)
    torch.testing.assert_close(o[0, query, head], expected, rtol=1e-14, atol=1e-14)


@both_forms_of(reference.moba)
def test_moba_ranks_past_blocks_by_their_mean_key_by_hand(form: Form) -> None:
    q, k, v = tokens(1, 8, 3, 3, 2, 4)  # geometric means: 8 ** 0.5, 3
    o, _ = form(q, k, v, block_size=2, top_k=2)
    assert_row(o, 5, 0, 0, 3, 3, 2, 4)
    assert_row(o, 4, 0, 0, 3, 3, 2, 0)
    assert_row(o, 3, 1, 8, 3, 3, 0, 0)
    assert_row(o, 0, 1, 0, 0, 0, 0, 0)
    o, _ = form(-q, k, v, block_size=2, top_k=2)
    assert_row(o, 5, 1, 1 / 8, 0, 0, 1 / 2, 1 / 4)
    o, lse = form(q, k, v, block_size=2, top_k=1, return_lse=True)
    assert_row(o, 5, 0, 0, 0, 0, 2, 4)
    assert lse[0, 0, 5].item() == pytest.approx(math.log(6), rel=1e-15)


@both_forms_of(reference.moba)
def test_moba_selects_the_lower_of_two_equal_blocks_by_hand(form: Form) -> None:
    q, k, v = tokens(2, 2, 1, 4, 1, 1)  # both means are log 2
    o, _ = form(q, k, v, block_size=2, top_k=2)
    assert_row(o, 5, 2, 2, 0, 0, 1, 1)


@both_forms_of(reference.dsa)
def test_dsa_selects_tokens_by_weighted_relus_and_the_lower_of_equals_by_hand(form: Form) -> None:
    q, k, v = tokens(1, 2, 5, 3, 4)
    q_index, w = torch.ones(1, 5, 1, 1).double(), torch.ones(1, 5, 1).double()
    k_index = rows(-1, 2, -3, 2, 1)[None, :, None]  # scores 0, 2, 0, 2, 1
    o, _ = form(q, k, v, q_index, k_index, w, top_k=2)
    assert_row(o, 4, 0, 2, 0, 3, 0)
    assert_row(o, 2, 1, 2, 0, 0, 0)
    assert_row(o, 0, 1, 0, 0, 0, 0)
    o, _ = form(q, k, v, q_index, k_index, w, top_k=4)
    assert_row(o, 4, 1, 2, 0, 3, 4)
    o, _ = form(q, k, v, q_index, k_index, -w, top_k=2)  # scores -0, -2, -0, -2, -1
    assert_row(o, 4, 1, 0, 5, 0, 0)


@both_forms_of(reference.msa)
def test_msa_selects_the_block_of_the_best_token_and_its_own_by_hand(form: Form) -> None:
    q, k, v = tokens(1, 2, 5, 3, 4, 6)
    q_index = torch.ones(1, 6, 1, 1).double()
    k_index = rows(7, -9, 3, 3, -1, -1)[None, :, None]
    o, _ = form(q, k, v, q_index, k_index, block_size=2, top_k=2)
    assert_row(o, 5, 1, 2, 0, 0, 4, 6)
    assert_row(o, 4, 1, 2, 0, 0, 4, 0)
    o, _ = form(q, k, v, q_index, 0 * k_index, block_size=2, top_k=2)
    assert_row(o, 5, 1, 2, 0, 0, 4, 6)
    o, _ = form(q, k, v, q_index, k_index.abs().neg(), block_size=2, top_k=2)  # -7, -3
    assert_row(o, 5, 0, 0, 5, 3, 4, 6)


@both_forms_of(reference.nsa)
def test_nsa_mixes_three_branches_by_hand(form: Form) -> None:
    q, k, v = tokens(1, 4, 9, 1, 1, 1)  # geometric means 2, 3, 1
    one, zero = torch.ones(1, 6, 1).double(), torch.zeros(1, 6, 1).double()
    options: Any = {"block_size": 2, "top_k": 2, "local_blocks": 1, "window": 2, "scale": 1.0}
    cmp = form(q, k, v, one, zero, zero, **options)
    assert_row(cmp, 5, 2, 2, 3, 3, 1, 1)
    assert_row(cmp, 4, 2, 2, 3, 3, 0, 0)
    assert torch.equal(cmp[0, 0], torch.zeros_like(cmp[0, 0]))
    slc = form(q, k, v, zero, one, zero, **options)
    assert_row(slc, 5, 1, 4, 0, 0, 1, 1)
    assert_row(slc, 3, 1, 4, 9, 1, 0, 0)
    swa = form(q, k, v, zero, zero, one, **options)
    assert_row(swa, 5, 0, 0, 0, 0, 1, 1)
    assert_row(swa, 2, 0, 4, 9, 0, 0, 0)
    together = form(q, k, v, 2 * one, 3 * one, 5 * one, **options)
    torch.testing.assert_close(together, 2 * cmp + 3 * slc + 5 * swa)


@both_forms_of(reference.nsa)
def test_nsa_heads_of_a_group_share_a_selection_by_hand(form: Form) -> None:
    _, k, v = tokens(1, 1, 3, 3, 2, 2, 1, 1)
    one, zero = torch.ones(1, 8, 2).double(), torch.zeros(1, 8, 2).double()
    options: Any = {"block_size": 2, "top_k": 3, "local_blocks": 1, "scale": 1.0}
    # The weights of blocks 1 and 2 are 3/7 and 2/7, and with 1 / k 2/17 and 3/17 or less.
    q = torch.ones(1, 8, 2, 1, dtype=torch.float64)
    o = form(q, k, v, zero, one, zero, **options)
    assert_row(o, 7, 1, 1, 3, 3, 0, 0, 1, 1, head=1)
    q[:, :, 1] = -30
    k = k.clone()
    k[:, 4:6] = -math.log(2)
    o = form(q, k, v, zero, one, zero, **options)
    assert_row(o, 7, 1, 1, 0, 0, 1 / 2, 1 / 2, 1, 1, head=0)


@both_forms_of(reference.nsa)
def test_nsa_takes_the_lower_of_two_negligible_blocks_by_hand(form: Form) -> None:
    # The means of blocks 1 and 2 are -250 and -200, so their weights are below 2^-126.
    k = torch.tensor([0.0, 0, 0, -500, 0, -400, 0, 0]).double().view(1, 8, 1, 1)
    one, zero = torch.ones(1, 8, 1).double(), torch.zeros(1, 8, 1).double()
    options: Any = {"block_size": 2, "top_k": 3, "local_blocks": 1, "scale": 1.0}
    v = torch.eye(8, dtype=torch.float64).view(1, 8, 1, 8)
    o = form(one[..., None], k, v, zero, one, zero, **options)
    assert_row(o, 7, 1, 1, 1, 0, 0, 0, 1, 1)


def call(name: str, T_q: int, T_k: int, *, B: int = 2) -> tuple[list[Tensor], list[Tensor]]:
    """Return tensors that get a gradient, and constants: an indexer whose scores tie often."""
    H, G = 4, 2
    q, k, v = draw(0, B, T_q, H, 3), draw(1, B, T_k, G, 3), draw(2, B, T_k, G, 5)
    generator = torch.Generator().manual_seed(3)

    def some(*shape: int) -> Tensor:
        return torch.randint(-1, 2, shape, generator=generator).double()

    match name:
        case "nsa":
            return [q, k, v, *(draw(n, B, T_q, H) for n in (3, 4, 5))], []
        case "moba":
            return [q, k, v], []
        case "dsa":
            return [q, k, v], [some(B, T_q, 3, 2), some(B, T_k, 2), some(B, T_q, 3)]
        case _:
            return [q, k, v], [some(B, T_q, G, 2), some(B, T_k, 2)]


OPTIONS: dict[str, list[dict[str, int]]] = {
    "nsa": [
        {"block_size": C, "top_k": n + L, "local_blocks": L, "window": W}
        for C in (1, 2, 3)
        for n, L, W in ((1, 1, 2), (1, 2, 1), (2, 1, 30))
    ],
    "moba": [{"block_size": C, "top_k": n} for C in (1, 2, 3, 16) for n in (1, 2, 30)],
    "dsa": [{"top_k": n} for n in (1, 2, 5, 30)],
    "msa": [{"block_size": C, "top_k": n} for C in (1, 2, 3, 16) for n in (1, 2, 30)],
}
OPS = {name: getattr(reference, name) for name in OPTIONS}


@pytest.mark.parametrize("name", OPS)
@pytest.mark.parametrize(("T_q", "T_k"), [(9, 9), (4, 9), (9, 4), (0, 4), (3, 0)])
def test_both_forms_agree(name: str, T_q: int, T_k: int) -> None:
    """To thousands of roundings of float64; another selection would be seen in the first digit."""
    op: Any = OPS[name]
    trained, constants = call(name, T_q, T_k)
    for options in OPTIONS[name]:
        first, second = (form(*trained, *constants, **options) for form in (op, op.second_form))
        first, second = (x if isinstance(x, Tensor) else x[0] for x in (first, second))
        torch.testing.assert_close(first, second, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", OPS)
def test_gradients_agree_with_finite_differences(name: str) -> None:
    op: Any = OPS[name]
    trained, constants = call(name, 4, 5, B=1)
    options = OPTIONS[name][4 if name in ("nsa", "msa", "moba") else 1]
    for form in (op, op.second_form):

        def function(*tensors: Tensor, form: Form = form) -> Tensor:
            result = form(*tensors, *constants, **options)
            return result if isinstance(result, Tensor) else result[0]

        assert torch.autograd.gradcheck(function, [x.requires_grad_() for x in trained])


@pytest.mark.parametrize("name", OPS)
def test_packed_sequences_are_separate_ones(name: str) -> None:
    op: Any = OPS[name]
    trained, constants = call(name, 7, 7, B=1)
    packed: Any = op(
        *trained, *constants, **OPTIONS[name][1], cu_seqlens=torch.tensor([0, 2, 2, 7])
    )
    packed = packed if isinstance(packed, Tensor) else packed[0]
    for one in (slice(0, 2), slice(2, 7)):
        alone = op(*(x[:, one] for x in (*trained, *constants)), **OPTIONS[name][1])
        alone = alone if isinstance(alone, Tensor) else alone[0]
        assert torch.equal(packed[:, one], alone)


@pytest.mark.parametrize("name", ["dsa", "msa"])
def test_the_indexer_is_a_constant(name: str) -> None:
    op: Any = OPS[name]
    trained, constants = call(name, 5, 5)
    for form in (op, op.second_form):
        assert not form(*trained, *(x.requires_grad_() for x in constants), top_k=2)[
            0
        ].requires_grad


@pytest.mark.parametrize("name", OPS)
def test_a_bad_option_is_named(name: str) -> None:
    op: Any = OPS[name]
    trained, constants = call(name, 3, 3)
    for option in OPTIONS[name][0]:
        with pytest.raises(ValueError, match=f"{option}: 0, expected at least"):
            op(*trained, *constants, **{option: 0})
    if name == "nsa":
        with pytest.raises(ValueError, match="top_k: 2, expected at least 3"):
            op(*trained, top_k=2)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", OPS)
def test_scores_are_rounded_to_the_dtype_of_the_inputs(name: str, dtype: torch.dtype) -> None:
    """The score of token 2 exceeds that of token 1 by less than bfloat16 can tell.

    They are 257 and 256; of NSA, softmax weights of 1 + 2^-8 and 1.
    """
    op: Any = OPS[name]
    large, small = (1, 2**-8) if name == "nsa" else (256, 1)
    scored = torch.tensor([[0, 0], [large, 0], [large, small], [0, 0]], dtype=dtype)
    q, k, v = torch.ones(1, 4, 1, 2, dtype=dtype), scored[None, :, None], torch.eye(4, dtype=dtype)
    gates = q[..., 0]
    options: dict[str, Any] = {"scale": 1.0, "block_size": 1, "top_k": 2}
    constants: tuple[Tensor, ...] = ()
    if name == "nsa":
        constants = (0 * gates, gates, 0 * gates)
        options |= {"local_blocks": 1, "top_k": 3}
    elif name in ("dsa", "msa"):
        constants = (q, scored[None], *([gates] if name == "dsa" else []))
        k = 0 * k
    if name == "dsa":
        options = {"top_k": 1}
    if name == "moba":
        options["scale"] = 0.0
    for form in (op, op.second_form):
        o = form(q, k, v[None, :, None], *constants, **options)
        weights = (o if isinstance(o, Tensor) else o[0])[0, 3, 0]
        selected, other = (1, 2) if dtype == torch.bfloat16 else (2, 1)
        assert weights[selected] > 0
        assert weights[other] == 0
