"""The attention functions of models in PyTorch, with the masks that models make for them."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from inspect import unwrap
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from properties.cases.case import Case
from properties.targets.adapter import Implementation, without
from properties.targets.bare import Absent
from properties.targets.bounds import Bound
from properties.targets.engines import SCALE, scale_of, those_taken
from properties.targets.transformers.release import lacks, model_of

# `(q, k, causal, window) -> mask`, which attention adds or applies; None hides nothing, or what is
# not causal.
Masks = Callable[[Tensor, Tensor, bool, int | None], Tensor | None]


def _made(kind: str) -> Masks:
    """Masks of `masking_utils`, as models have made them since 4.53."""
    masking = import_module("transformers.masking_utils")
    make = getattr(masking, f"{kind}_mask")

    def mask(q: Tensor, k: Tensor, causal: bool, window: int | None) -> Tensor | None:
        if not causal:
            return None
        queries, keys = q.shape[1], k.shape[1]
        first = keys - queries
        sees = (
            masking.causal_mask_function
            if window is None
            else masking.sliding_window_causal_mask_function(window)
        )
        made: Tensor | None = make(
            **those_taken(
                make,
                batch_size=len(q),
                cache_position=first + torch.arange(queries),
                q_length=queries,
                q_offset=first,
                kv_length=keys,
                mask_function=sees,
                local_size=window,
                dtype=q.dtype,
            )
        )
        return made

    return mask


def _converted() -> Masks:
    """Masks of `AttentionMaskConverter`, as models made them before, and some do."""
    converter = import_module("transformers.modeling_attn_mask_utils").AttentionMaskConverter

    def mask(q: Tensor, k: Tensor, causal: bool, window: int | None) -> Tensor | None:
        if not causal:
            return None
        made: Tensor | None = converter(True, sliding_window=window).to_causal_4d(
            len(q), q.shape[1], k.shape[1], dtype=q.dtype, device=q.device
        )
        return made

    return mask


def _plain(
    layer: SimpleNamespace, *given: Any, scaling: float, is_causal: bool | None
) -> tuple[Tensor, None]:
    """PyTorch's attention as models call it themselves."""
    q, k, v, mask = given
    causal = is_causal is None and mask is None and q.shape[2] > 1
    o = scaled_dot_product_attention(
        q, k, v, attn_mask=mask, is_causal=causal, scale=scaling, enable_gqa=True
    )
    return o.transpose(1, 2), None


def _eager(model: str) -> Callable[..., Any]:
    module = model_of(model)
    if not hasattr(module, "eager_attention_forward"):
        raise Absent(f"{model} has no eager_attention_forward")
    run: Callable[..., Any] = unwrap(module.eager_attention_forward)
    return run


def _sdpa() -> Callable[..., Any]:
    module = import_module("transformers.integrations.sdpa_attention")
    run: Callable[..., Any] = unwrap(module.sdpa_attention_forward)
    return run


def _attention(find: Callable[[], Callable[..., Any]], masks: str, *has: str) -> Implementation:
    """Attention that has some of our options besides `causal`, `window` and `scale`.

    Args:
        masks: "eager" or "sdpa", by `masking_utils`; or "converted". Releases without
            `masking_utils` have a way to hide keys outside a window in each model, and here none.
        has: "softcap", or "sink".
    """
    lacking = {"softcap", "sink"} - set(has)
    if masks != "converted" and find_spec("transformers.masking_utils") is None:
        masks, lacking = "converted", {*lacking, "window"}
    run, masks_of = find(), _converted() if masks == "converted" else _made(masks)

    def attention(
        q: Tensor, k: Tensor, v: Tensor, *, scale: float | None = None, causal: bool = False,
        window: int | None = None, softcap: float | None = None, sink: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        groups = q.shape[2] // max(k.shape[2], 1)
        layer = SimpleNamespace(
            num_key_value_groups=groups,
            head_dim=q.shape[3],
            is_causal=causal,
            training=False,
            sinks=sink,
            # Gemma 2 before 4.48 reads its options from the model.
            scaling=scale_of(scale, q),
            attn_logit_softcapping=softcap,
            attention_dropout=0.0,
        )
        mask = masks_of(q, k, causal, window)
        o: Tensor = run(
            layer,
            *(x.transpose(1, 2) for x in (q, k, v)),
            mask,
            scaling=scale_of(scale, q),
            is_causal=None if causal else False,
            **({"softcap": softcap} if "softcap" in has else {}),
        )[0]
        return o

    q = torch.ones(1, 1, 1, 2)
    if why := lacks(partial(attention, q, q, q, sink=q.view(2)[:1] if "sink" in has else None)):
        raise Absent(why)
    bounds: dict[str, Bound] = {"as many keys as queries, or more": _keys_for_queries}
    if "window" not in lacking:
        bounds["a window if causal"] = _causal_windows
    if "sink" in has:
        bounds["a sink"] = _with_a_sink
    return Implementation(
        without(attention, lacking),
        conventions=(SCALE, "tensors are [B, H, T, D]"),
        # In 16 bits models round logits and weights, by design.
        dtypes=("float32",),
        bounds=bounds,
        unstated={"rejection": "its model checks nothing, and sizes are broadcast"},
    )


def _keys_for_queries(case: Case) -> Case:
    if case.key_lengths is None:
        return case
    pairs = zip(case.key_lengths, case.lengths, strict=True)
    return replace(case, key_lengths=tuple(max(pair) for pair in pairs))


def _causal_windows(case: Case) -> Case:
    if case.options["causal"]:
        return case
    return case.with_options(window=None)


def _with_a_sink(case: Case) -> Case:
    return replace(case, given=tuple(dict.fromkeys((*case.given, "sink"))))


DECLARED: Mapping[str, Mapping[str, Callable[[], Implementation]]] = {
    "attention": {
        "llama": partial(_attention, partial(_eager, "llama"), "eager"),
        "gemma2": partial(_attention, partial(_eager, "gemma2"), "eager", "softcap"),
        "gpt_oss": partial(_attention, partial(_eager, "gpt_oss"), "eager", "sink"),
        "sdpa": partial(_attention, _sdpa, "sdpa"),
        "converted_mask": partial(_attention, lambda: _plain, "converted"),
    }
}
