"""The masked softmax and the sequences that pages of sparse attention share."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from reference.heads import heads_per_group
from reference.op import Form
from reference.scale import resolve_scale
from reference.softmax.run import queries_and_keys


def attend(s: Tensor, visible: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Softmax over the visible keys: `o` and the LSE, 0 and -inf for a row that sees none.

    Args:
        s: `[B, H, T_q, T_k]`, logits.
        visible: bool, broadcast to the shape of s.
        v: `[B, T_k, H, V]`.

    Returns:
        `[B, T_q, H, V]` and `[B, H, T_q]`.
    """
    # One more key that nobody sees: there is a maximum even where there is no key.
    s = torch.nn.functional.pad(torch.where(visible, s, -math.inf), (0, 1), value=-math.inf)
    o, lse = softmax_with_sink(s, v.transpose(1, 2))
    return o.transpose(1, 2), lse


def softmax_with_sink(s: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Softmax of logits whose last column, a sink or -inf, has no value.

    Args:
        s: `[..., T_q, T_k + 1]`, logits.
        v: `[..., T_k, V]`.

    Returns:
        `o [..., T_q, V]` and the LSE `[..., T_q]`; 0 and -inf for a row of nothing but -inf.
    """
    # -inf is replaced before the exponential and again after the quotient, so that neither the
    # value nor the gradient of the branch not taken is NaN.
    nothing = (s == -math.inf).all(-1, keepdim=True)
    s = torch.where(nothing, 0.0, s)
    top = s.amax(-1, keepdim=True).detach()
    e = torch.exp(s - top)
    total = e.sum(-1, keepdim=True)
    lse = torch.where(nothing, -math.inf, top + torch.log(total))
    o = e[..., :-1] @ v.to(s.dtype)
    return torch.where(nothing, 0.0, o / total), lse[..., 0]


def finite_maximum(m: Tensor) -> Tensor:
    """The row maximum to subtract from logits: 0 for -inf, since -inf - -inf is NaN."""
    return torch.where(m == -math.inf, 0.0, m)


def logits(q: Tensor, k: Tensor, scale: float) -> Tensor:
    """`scale · q_i · k_j`, `[B, H, T_q, T_k]`, of `q [B, T_q, H, K]` and `k [B, T_k, H, K]`."""
    return scale * (q.transpose(1, 2) @ k.permute(0, 2, 3, 1))


def for_each_head(x: Tensor, heads: int) -> Tensor:
    """Repeat the groups of `[B, T, G, ...]`, so that head h has those of group h // (H / G)."""
    return x.repeat_interleave(heads // x.shape[2], 2)


def positions(queries: int, keys: Tensor) -> tuple[Tensor, Tensor]:
    """The position of each query among the keys `[T_q, 1]`, and of each key `[1, T_k]`."""
    T_k = keys.shape[1]
    p = torch.arange(T_k - queries, T_k, device=keys.device)
    return p[:, None], torch.arange(T_k, device=keys.device)[None, :]


def each_sequence(
    form: Form,
    queries: Mapping[str, Tensor],
    keys: Mapping[str, Tensor],
    cu_seqlens: Tensor | None,
    cu_seqlens_k: Tensor | None,
    **options: Any,
) -> tuple[Tensor, Tensor]:
    """Run a form over every sequence of a batch.

    Args:
        queries: tensors with T_q tokens on their second dim; the first of them is `q`.
        keys: tensors with T_k tokens there.
        options: further arguments of the form.

    Returns:
        `o [B, T_q, H, V]` in the dtype of `q`, and `lse [B, H, T_q]`.
    """
    q, k = next(iter(queries.values())), next(iter(keys.values()))
    results = [
        form(
            **{name: x[:, i] for name, x in queries.items()},
            **{name: x[:, j] for name, x in keys.items()},
            **options,
        )
        for _, i, j in queries_and_keys(q, k, cu_seqlens, cu_seqlens_k)
    ]
    o = torch.cat([o for o, _ in results], dim=1)
    return o.to(q.dtype), torch.cat([lse for _, lse in results], dim=-1)


def selecting(
    *,
    queries: Sequence[str] = (),
    indexer: tuple[str, str] | None = None,
    weights: str | None = None,
) -> Callable[..., tuple[Tensor, Tensor | None]]:
    """Return the `run` of an op that selects keys for each query.

    Args:
        queries: the names of further tensors by query.
        indexer: the names of its queries and keys, constants that reach the forms in one dtype.
        weights: the name of its weights, constants by query.

    Returns:
        The argument `run` of `reference.op.op`. Forms get every other argument unchanged,
        but for a block_size past the keys.
    """

    def run(
        form: Form,
        sizes: Mapping[str, int],
        *,
        scale: float | None,
        return_lse: bool,
        **rest: Any,
    ) -> tuple[Tensor, Tensor | None]:
        heads_per_group("q", sizes["H"], sizes["G"], ("k", "v"))
        at_least_one(**{name: x for name, x in rest.items() if isinstance(x, int)})
        by_query = {name: rest.pop(name) for name in ("q", *queries)}
        by_key = {name: rest.pop(name) for name in ("k", "v")}
        if indexer is not None:
            x, y = (rest.pop(name).detach() for name in indexer)
            wide = torch.promote_types(x.dtype, y.dtype)
            by_query[indexer[0]], by_key[indexer[1]] = x.to(wide), y.to(wide)
        if weights is not None:
            by_query[weights] = rest.pop(weights).detach()
        rest["scale"] = resolve_scale(scale, sizes["K"])
        if "block_size" in rest:
            # A block that is longer still holds no more keys, and no form builds all of it.
            rest["block_size"] = min(rest["block_size"], by_key["k"].shape[1] + 1)
        o, lse = each_sequence(form, by_query, by_key, **rest)
        return o, lse if return_lse else None

    return run


def at_least_one(**counts: int) -> None:
    """Refuse a count below 1.

    Raises:
        ValueError: one of them is below 1.
    """
    for name, count in counts.items():
        if count < 1:
            raise ValueError(f"{name}: {count}, expected at least 1")
