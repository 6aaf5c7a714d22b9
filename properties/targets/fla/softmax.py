"""Attention over pairs of tokens in fla."""

from collections.abc import Mapping
from dataclasses import replace
from inspect import Parameter, signature
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from properties.cases.case import Case
from properties.catalogue.telescope import Telescope
from properties.targets.bounds import (
    changed_dims,
    equal_widths,
    fixed_options,
    one_token_each,
    own_keys,
    power_of_two,
)
from properties.targets.fla import library
from properties.targets.fla.bounds import at_least, at_most, powers_of_two
from properties.targets.fla.library import Kernel
from properties.targets.fla.mode import (
    CHUNK,
    SCALE,
    Given,
    Mode,
    Modes,
    Outputs,
    each,
    output_alone,
)


def _causal_only(kernel: Kernel, given: Given) -> Outputs:
    if not given.pop("causal", False):
        raise ValueError("causal: False, expected True, as fla has no other attention")
    return output_alone(kernel, given)


def _one_step(kernel: Kernel, given: Given) -> Outputs:
    """The queries, one of each sequence, are tokens of one; so are the keys of all sequences.

    A window of no keys has a meaning of its own.
    """
    if given.get("window_size") == 0:
        raise ValueError("window: 0, expected 1 or more, as fla documents zeros for it")
    given.pop("causal", None)
    q, bounds, keys = given["q"], given.get("cu_seqlens"), given.pop("cu_seqlens_k", None)
    B, T = given["k"].shape[:2]
    if keys is None:
        keys = T * torch.arange(B + 1, device=q.device) if bounds is None else bounds
    rows = {
        n: given[n].flatten(0, 1)[None] for n in ("q", "k", "v", "g") if given.get(n) is not None
    }
    o: Tensor = kernel(**{**given, **rows, "cu_seqlens": keys})
    return o.view(*q.shape[:-1], o.shape[-1])


def _reflections(kernel: Kernel, given: Given) -> Outputs:
    """fla scales the gates too."""
    if given.get("g") is not None:
        factor = given["q"].shape[-1] ** -0.5 if given["scale"] is None else given["scale"]
        given["g"] = given["g"] / factor
    return output_alone(kernel, given)


def _sources(kernel: Kernel, given: Given) -> Outputs:
    """Sources are a list; weights have their axis first."""
    # Rows that begin anywhere fail an assertion: sources are to be aligned to 16 bytes.
    copied = torch.contiguous_format
    given["residuals"] = [x.clone(memory_format=copied) for x in given["residuals"].unbind(2)]
    if not given.get("return_weights"):
        o: Tensor = kernel(**given)
        return o, None
    o, p = kernel(**given)
    return o, p.movedim(0, -1)


def _selected(kernel: Kernel, given: Given) -> Outputs:
    """A block that is selected twice is passed once."""
    indices = given.pop("block_indices").long().sort(-1).values
    again = functional.pad(indices.diff(dim=-1) == 0, (1, 0))
    given["block_indices"] = indices.masked_fill(again, -1)
    if signature(kernel).parameters["g_slc"].default is Parameter.empty:
        # Release 0.1.
        given |= {"g_cmp": None, "g_slc": torch.ones_like(given["q"][..., 0]), "g_swa": None}
    given["cu_seqlens"] = _both_bounds(given)
    return output_alone(kernel, given)


def _both_bounds(given: Given) -> Tensor | tuple[Tensor, Tensor] | None:
    """Boundaries of keys go beside those of queries."""
    keys: Tensor | None = given.pop("cu_seqlens_k", None)
    queries: Tensor | None = given.get("cu_seqlens")
    if queries is None and keys is not None:
        raise ValueError("cu_seqlens_k: given, expected None without cu_seqlens")
    return queries if queries is None or keys is None else (queries, keys)


def _three_branches(kernel: Kernel, given: Given) -> Outputs:
    """The branch of the window is fla's parallel attention, or PyTorch's, in the place of
    flash-attn.
    """
    gate, window = given["g_swa"], given.pop("window_size")
    if signature(kernel).parameters["g_swa"].default is not Parameter.empty:
        del given["g_swa"]
    if given.pop("local_blocks", 2) != 2:
        raise ValueError("local_blocks: expected 2, as fla has no other number")
    o: Tensor = kernel(**given)
    around = library.kernel("fla.ops.attn:parallel_attn")
    if around is None or "window_size" not in signature(around).parameters:
        around = _recent
    recent = around(
        given["q"],
        given["k"],
        given["v"],
        scale=given["scale"],
        cu_seqlens=given.get("cu_seqlens"),
        window_size=window,
    )
    mixed: Tensor = o + gate.unsqueeze(-1) * recent
    return mixed.to(given["q"].dtype)


def _recent(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float | None,
    cu_seqlens: Tensor | None,
    window_size: int,
) -> Tensor:
    """Attention to the keys of a window, for releases without."""
    i = torch.arange(q.shape[1], device=q.device)
    behind = i[:, None] - i
    seen = (behind >= 0) & (behind < window_size)
    if cu_seqlens is not None:
        own = torch.bucketize(i, cu_seqlens[1:], right=True)
        seen &= own[:, None] == own
    q, k, v = (x.float().transpose(1, 2) for x in (q, k, v))
    attention = functional.scaled_dot_product_attention
    return attention(q, k, v, attn_mask=seen, scale=scale, enable_gqa=True).transpose(1, 2)


def _rows_telescope(case: Case) -> tuple[Telescope, ...]:
    """Row sums of the softmax's gradient, which are zero, less its column sums."""
    return (Telescope("dg", "B T H", (("B T H V", "gradient of o", "o"),)),)


def _wall_telescope(case: Case) -> tuple[Telescope, ...]:
    """A gate of each channel, and one of each head; of grouped keys the sum over heads is known."""
    heads = "B T H K" if case.dims["R"] == 1 else "B T G K"
    channels = (("B T H K", "q", "dq"), (heads, "k", "dk"))
    rows = (replace(rows, gradient="dgs") for rows in _rows_telescope(case))
    return (Telescope("dg", "B T H K", channels), *rows)


def _one_tile(case: Case) -> Case:
    return replace(case, dims={**powers_of_two(case).dims, "K": 16})


def float32_reflections(case: Case) -> Case:
    return replace(case, float32=("w", "beta", *(n for n in case.given if n == "g")))


def _finite_gates(case: Case) -> Case:
    return replace(case, values="strong_gates") if case.values == "closed_gates" else case


def _scale_of_gates(case: Case) -> Case:
    unscaled = "g" in case.given and case.options.get("scale") == 0
    return case.with_options(scale=1.0) if unscaled else case


def _forward_of_other_keys(case: Case) -> Case:
    apart = case.packed and case.key_lengths is not None and case.context == "grad"
    return replace(case, context="no_grad") if apart else case


def _selection(case: Case) -> Case:
    """Groups of 16 heads, and blocks and slots of tiles, as it asserts.

    It takes keys wider than 128 where it finds Hopper's shared memory, which needs a GPU.
    """
    options = {**case.options}
    size = options.get("block_size") or 64
    options["block_size"] = min(64, max(16, power_of_two(size)))
    if "top_k" in options:
        slots = power_of_two(options["top_k"])
        options["top_k"] = min(slots, options["block_size"] // 2)
    dims = {**case.dims, "R": 16, "G": min(case.dims["G"], 2)}
    widest = 256 if torch.cuda.is_available() else 128
    return at_least(9, "K", "V")(at_most(widest)(replace(case, options=options, dims=dims)))


_SELECTION = {
    "groups of 16 heads, K of 9 to 128 (256 on a GPU), V above 8, blocks of 16 to 64, half as "
    "many slots": _selection
}
_TWO_TILES = {"K of 128 at most": at_most(128)}
_ONE_TILE = {"powers of two, K of 16 at most": _one_tile}
_USE_NORM = {"normalize": "use_norm"}
_ATTENTION: Mapping[str, Any] = {
    "call": _causal_only,
    "ours": ("causal",),
    "theirs": {"window": "window_size", "sink": "sink_bias"},
    "conventions": (SCALE, "window is window_size, sink is sink_bias"),
    "bounds": {
        "causal": fixed_options(causal=True),
        "keys that are the queries' tokens": own_keys,
        # fla asserts this bound.
        "K of 256 at most": at_most(256),
    },
    "unstated": {"splitting": "a second call has more keys than queries"},
    "telescopes": _rows_telescope,
}
MODES: Modes = {
    "attention": {
        **each("attn", "parallel", **_ATTENTION),
        "forgetting": Mode(
            "fla.ops.forgetting_attn:parallel_forgetting_attn", tokens=CHUNK, **_ATTENTION
        ),
        "decoding": Mode(
            "fla.ops.attn.decoding:attn_decoding_one_step",
            call=_one_step,
            ours=("causal", "cu_seqlens_k"),
            theirs={"window": "window_size", "sink": "sink_bias"},
            conventions=(SCALE, "sequences are packed", "a window of 0 gives zeros: refused"),
            bounds={"a query of each sequence": one_token_each},
            forward_only=True,
            unstated={"splitting": "it has one query"},
        ),
    },
    "based": {
        **each("based", "parallel", call=output_alone, theirs=_USE_NORM, bounds=_TWO_TILES),
        **each("based", "fused_chunk", call=output_alone, theirs=_USE_NORM, bounds=_ONE_TILE),
    },
    "rebased": each(
        "rebased",
        "parallel",
        call=output_alone,
        theirs={"normalize": "use_normalize"},
        bounds=_TWO_TILES,
    ),
    "stickbreaking_attn": each("stickbreaking_attn", "parallel"),
    "path_attn": {
        "parallel": Mode(
            "fla.ops.path_attn:parallel_path_attn fla.ops.path_attn:parallel_path_attention",
            call=_reflections,
            tokens=CHUNK,
            telescopes=_rows_telescope,
            conventions=(SCALE, "gates are scaled as logits are"),
            bounds={
                "a scale other than 0 beside gates": _scale_of_gates,
                "K and V 16, 32, 64 or 128": changed_dims(
                    "KV", lambda n: min(128, max(16, power_of_two(n)))
                ),
                "w, beta and g in float32": float32_reflections,
            },
        )
    },
    "wall_attn": each(
        "wall_attn",
        "parallel",
        call=output_alone,
        theirs={"gs": "g_scalar", "sink": "sink_bias", "window": "window_size"},
        telescopes=_wall_telescope,
        # With WALL_ATTN_DEBUG=1, fla.ops.wall_attn.parallel asserts it of `g` and `g_scalar`.
        bounds={"finite gates": _finite_gates},
    ),
    "selected_attention": {
        "parallel": Mode(
            "fla.ops.nsa:parallel_nsa",
            call=_selected,
            theirs={"indices": "block_indices"},
            ours=("cu_seqlens_k",),
            conventions=(SCALE, "a block that is selected twice is passed once"),
            # It raises NotImplementedError.
            bounds={**_SELECTION, "no gradients of keys of other lengths": _forward_of_other_keys},
        )
    },
    "nsa": each(
        "nsa",
        "parallel",
        call=_three_branches,
        theirs={"window": "window_size", "top_k": "block_counts"},
        ours=("local_blocks",),
        conventions=(
            SCALE,
            "the window's branch is fla's or PyTorch's attention, in the place of flash-attn",
            "outputs are float32 beside float32 gates; they become the dtype of q",
        ),
        bounds={
            **_SELECTION,
            "two local blocks": fixed_options(local_blocks=2),
            "keys that are the queries' tokens": own_keys,
        },
        unstated={"splitting": "a second call has more keys than queries"},
    ),
    "attnres": each(
        "attnres",
        "fused",
        call=_sources,
        theirs={
            "x": "residuals",
            "weight": "rms_weight",
            "output_weight": "output_rms_weight",
            "eps": "rms_eps",
        },
        constants=("weights",),
        conventions=(SCALE, "sources are a list"),
    ),
    "parallax": each(
        "parallax",
        "parallel",
        call=output_alone,
        theirs={"window": "window_size"},
        dtypes=("bfloat16", "float16"),
        bounds={"K = V above 8": lambda case: equal_widths(at_least(9, "K")(case))},
    ),
}
