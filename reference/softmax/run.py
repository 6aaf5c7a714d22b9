"""The options, sequences and mask that the forms of attention share."""

import functools
from collections.abc import Iterator, Mapping
from typing import TypedDict

import torch
from jaxtyping import Bool
from torch import Tensor

from reference.arguments import is_normal
from reference.heads import heads_per_group
from reference.op import Form, op
from reference.scale import BAD_SCALE, resolve_scale
from reference.sequences import CuSeqlens, sequences
from reference.softmax.structure import Structure, check, of_sequences

TEXTS = {
    "cu_seqlens": "Boundaries of N packed sequences of queries, in tokens; B is then 1, and "
    "sequence n attends to sequence n only. None means N = B sequences.",
    "cu_seqlens_k": "The boundaries among the keys; None means those of the queries.",
    "return_lse": "Return the logarithm of the softmax's denominator as well.",
    "lse": "Natural logarithm, in the promoted dtype of the inputs of the logits; None unless "
    "`return_lse`.",
}
BAD_BOUNDARIES = (
    "`cu_seqlens_k` without `cu_seqlens`",
    "boundaries with B != 1, or that do not start at 0, decrease, or do not end at T_q (T_k)",
)

# `op` with the words that pages of attention share.
attention_op = functools.partial(
    op,
    same_dtype=("q", "k", "v"),
    texts=TEXTS,
    raises=(BAD_SCALE, *BAD_BOUNDARIES),
)


class Options(TypedDict, total=False):
    """The scale, and the boundaries of packed sequences of queries and of keys."""

    scale: float | None
    cu_seqlens: CuSeqlens | None
    cu_seqlens_k: CuSeqlens | None


class LseOptions(Options, total=False):
    return_lse: bool


def sees(
    T_q: int, T_k: int, causal: bool, window: int | None, device: torch.device
) -> Bool[Tensor, "T_q T_k"]:
    """Whether query i, at position p = i + T_k - T_q among the keys, sees key j."""
    p = torch.arange(T_k - T_q, T_k, device=device)[:, None]
    j = torch.arange(T_k, device=device)[None, :]
    visible = (j <= p) if causal else torch.ones(T_q, T_k, dtype=torch.bool, device=device)
    return visible if window is None else visible & ((p - j).abs() < window)


def check_window(window: int | None) -> None:
    """Refuse a window without keys."""
    if window is not None and window < 1:
        raise ValueError(f"window: {window}, expected at least 1, the query's own key")


def check_softcap(softcap: float | None) -> None:
    """Refuse a bound that is not positive and normal in float32."""
    if softcap is not None and not is_normal(softcap):
        wanted = "expected a positive finite number, normal in float32"
        raise ValueError(f"softcap: {softcap}, {wanted}")


def queries_and_keys(
    q: Tensor, k: Tensor, cu_seqlens: Tensor | None, cu_seqlens_k: Tensor | None
) -> Iterator[tuple[slice, slice, slice]]:
    """Yield the rows of the batch, the queries and the keys of each sequence.

    A dense batch yields one of each.
    """
    if cu_seqlens_k is not None and cu_seqlens is None:
        raise ValueError("cu_seqlens_k: given without cu_seqlens, expected cu_seqlens as well")
    name_k = "cu_seqlens (for the keys)" if cu_seqlens_k is None else "cu_seqlens_k"
    cu_seqlens_k = cu_seqlens if cu_seqlens_k is None else cu_seqlens_k
    queries = list(sequences(cu_seqlens, q.shape[0], q.shape[1]))
    keys = list(sequences(cu_seqlens_k, k.shape[0], k.shape[1], name_k))
    if len(keys) != len(queries):
        raise ValueError(
            f"cu_seqlens_k: {len(keys)} sequences, expected {len(queries)}, those of cu_seqlens"
        )
    for (n, i), (_, j) in zip(queries, keys, strict=True):
        yield n, i, j


def run(
    form: Form, sizes: Mapping[str, int], q: Tensor, k: Tensor, v: Tensor, *, scale: float | None,
    causal: bool, window: int | None, softcap: float | None, sink: Tensor | None,
    alibi_slopes: Tensor | None, g: Tensor | None, bias: Tensor | None, mask: Tensor | None,
    structure: Structure | None, cu_seqlens: Tensor | None, cu_seqlens_k: Tensor | None,
    return_lse: bool,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """Run one form of attention over every sequence of a batch.

    Args:
        form: `(q, k, v, options) -> (o, lse)` for sequences of one length.
        sizes: of each dim.
        The rest are the arguments of the op.

    Returns:
        `o [B, T_q, H, V]` in the dtype of `q`, and `lse [B, H, T_q]`, or None.
    """
    heads_per_group("q", sizes["H"], sizes["G"], ("k", "v"))
    scale = resolve_scale(scale, sizes["K"])
    check_window(window)
    check_softcap(softcap)
    if g is not None and not causal:
        raise ValueError("g: given with causal=False, expected causal=True")
    parts = list(queries_and_keys(q, k, cu_seqlens, cu_seqlens_k))
    rules = Structure() if structure is None else structure
    check(
        rules,
        batch=q.shape[0],
        heads=sizes["H"],
        queries=[i.stop - i.start for _, i, _ in parts],
        keys=[j.stop - j.start for _, _, j in parts],
        packed=cu_seqlens is not None,
    )
    outputs, log_sums = [], []
    for n, i, j in parts:
        o, lse = form(
            q[:, i],
            k[:, j],
            v[:, j],
            scale=scale,
            causal=causal,
            window=window,
            softcap=softcap,
            sink=sink,
            slope=None if alibi_slopes is None else alibi_slopes.detach(),
            g=None if g is None else g[:, j],
            bias=_between(bias, i, j),
            mask=_between(mask, i, j),
            structure=of_sequences(rules, n, i, j),
        )
        outputs.append(o)
        log_sums.append(lse)
    o, lse = torch.cat(outputs, dim=1), torch.cat(log_sums, dim=-1)
    return o.to(q.dtype), lse if return_lse else None


def _between(x: Tensor | None, i: slice, j: slice) -> Tensor | None:
    """The rows i and the columns j of a matrix; a size of 1 stands for all."""
    if x is None:
        return None
    x = x if x.shape[2] == 1 else x[:, :, i]
    return x if x.shape[3] == 1 else x[..., j]
