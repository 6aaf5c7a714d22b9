"""The functions with which models rotate queries and keys, behind our signatures.

A model computes cosines and sines of each token and passes them on; here they are rows of our
tables. Queries and keys are the first and the other heads of x, so that both results count.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from inspect import signature
from types import ModuleType, SimpleNamespace

import torch
from torch import Tensor

from properties.cases.case import Case
from properties.targets.adapter import Implementation, without
from properties.targets.bounds import Bound, fixed_dims, fixed_options
from properties.targets.transformers.release import lacks, model_of

# `(model, q, k, cos, sin) -> (q, k)` of `[B, T, H, D]`, with cosines and sines `[B, T, P]`.
Rotate = Callable[[ModuleType, Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]

_REJECTION = {"rejection": "tables and positions are the adapter's"}
_ROWS = "positions are rows of tables, which models compute for each token"


def _twice(x: Tensor) -> Tensor:
    return torch.cat([x, x], dim=-1)


def _heads_first(
    model: ModuleType, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor
) -> tuple[Tensor, Tensor]:
    """Call it as a model does: `[B, H, T, D]`, and every cosine for both halves."""
    q, k = model.apply_rotary_pos_emb(
        q.transpose(1, 2), k.transpose(1, 2), _twice(cos), _twice(sin)
    )
    return q.transpose(1, 2), k.transpose(1, 2)


def _of_esm(
    model: ModuleType, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor
) -> tuple[Tensor, Tensor]:
    """Call it as for llama; releases before 5.1 turn one tensor at a time."""
    if "k" in signature(model.apply_rotary_pos_emb).parameters:
        return _heads_first(model, q, k, cos, sin)
    cos, sin = (_twice(x)[:, None] for x in (cos, sin))
    q, k = (model.apply_rotary_pos_emb(x.transpose(1, 2), cos, sin).transpose(1, 2) for x in (q, k))
    return q, k


def _heads_second(
    model: ModuleType, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor
) -> tuple[Tensor, Tensor]:
    q, k = model.apply_rotary_pos_emb(q, k, _twice(cos), _twice(sin), unsqueeze_dim=2)
    return q, k


def _narrow(
    model: ModuleType, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor
) -> tuple[Tensor, Tensor]:
    """Each cosine once."""
    q, k = model.apply_rotary_pos_emb(q.transpose(1, 2), k.transpose(1, 2), cos, sin)
    return q.transpose(1, 2), k.transpose(1, 2)


def _neighbours(
    model: ModuleType, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor
) -> tuple[Tensor, Tensor]:
    """Each cosine for both neighbours."""
    wide = (x.repeat_interleave(2, -1) for x in (cos, sin))
    q, k = model.apply_rotary_pos_emb(q.transpose(1, 2), k.transpose(1, 2), *wide)
    return q.transpose(1, 2), k.transpose(1, 2)


def _alone(
    model: ModuleType, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor
) -> tuple[Tensor, Tensor]:
    """One tensor at a time, sines first."""
    q, k = (model.apply_rotary_pos_emb(x, sin, cos) for x in (q, k))
    return q, k


def _at_the_end(
    model: ModuleType, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor
) -> tuple[Tensor, Tensor]:
    """The last dims are rotated, one tensor at a time."""
    width = 2 * cos.shape[-1]
    rolled = (
        model.apply_rotary_pos_emb(x.roll(-width, -1), cos, sin, unsqueeze_dim=2) for x in (q, k)
    )
    q, k = (x.roll(width, -1) for x in rolled)
    return q, k


def _regrouped(
    model: ModuleType, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor
) -> tuple[Tensor, Tensor]:
    """Neighbours come out as halves."""
    each = model.apply_rotary_pos_emb_interleave(
        q.transpose(1, 2), k.transpose(1, 2), _twice(cos), _twice(sin)
    )
    q, k = (x.transpose(1, 2).unflatten(-1, (2, -1)).transpose(-1, -2).flatten(-2) for x in each)
    return q, k


def _complex(
    model: ModuleType, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor
) -> tuple[Tensor, Tensor]:
    factor = torch.complex(cos.float(), sin.float())
    q, k = model.apply_rotary_emb(q.transpose(1, 2), k.transpose(1, 2), factor)
    return q.transpose(1, 2), k.transpose(1, 2)


def _of_images(
    model: ModuleType, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor
) -> tuple[Tensor, Tensor]:
    """All tokens in a row, without a batch."""
    flat = (x.flatten(0, 1) for x in (q, k, _twice(cos), _twice(sin)))
    turned = model.apply_rotary_pos_emb_vision(*flat)
    q, k = (x.view_as(y) for x, y in zip(turned, (q, k), strict=True))
    return q, k


@dataclass(frozen=True)
class _Mode:
    """How a model rotates.

    Args:
        rotate: calls its function.
        neighbours: pairs are neighbours rather than halves.
        partial: it rotates a part of a head, too.
        conjugate: it rotates backwards.
    """

    rotate: Rotate
    neighbours: bool = False
    partial: bool = False
    conjugate: bool = False

    @property
    def bounds(self) -> dict[str, Bound]:
        bounds: dict[str, Bound] = {"tables in the dtype of x": _of_x}
        if self.partial:
            bounds["some dims of a head rotated"] = _some_pairs
        else:
            bounds["all dims of a head rotated"] = _whole
        if self.neighbours:
            bounds["neighbours as pairs"] = fixed_options(interleaved=True)
        if self.conjugate:
            bounds["backwards"] = fixed_options(conjugate=True)
        return bounds


# One of each kind that differs in its lines; by model.
_MODES = {
    "llama": _Mode(_heads_first),
    "gpt_neox": _Mode(_heads_second, partial=True),
    "phi3": _Mode(_heads_first, partial=True),
    "esm": _Mode(_of_esm),
    "gpt_oss": _Mode(_narrow),
    "nanochat": _Mode(_heads_first, conjugate=True),
    "qwen2_vl": _Mode(_of_images),
    "glm": _Mode(_heads_first, neighbours=True, partial=True),
    "ernie4_5": _Mode(_heads_second, neighbours=True),
    "cohere": _Mode(_neighbours, neighbours=True),
    "gptj": _Mode(_alone, neighbours=True),
    "deepseek_v2": _Mode(_complex, neighbours=True),
    "deepseek_v3": _Mode(_regrouped, neighbours=True),
    "deepseek_v4": _Mode(_at_the_end, neighbours=True, partial=True),
}


def implementations() -> tuple[dict[str, dict[str, Implementation]], dict[str, str]]:
    """Op → model → its implementation in the installed release; those it lacks → why."""
    made: dict[str, dict[str, Implementation]] = {"rotary_embedding": {}, "multiaxis_rotary": {}}
    lacking: dict[str, str] = {}
    for name, mode in _MODES.items():
        if why := lacks(partial(_try_rotation, name, mode.rotate, 4)):
            lacking[f"rotary_embedding ({name})"] = why
            continue
        # Earlier functions rotate whole heads, and models cut off the rest.
        if mode.partial and _rotates_whole_heads(name, mode.rotate):
            mode = replace(mode, partial=False)
        made["rotary_embedding"][name] = _rotary(name, mode)
    for name, blocks in _SECTIONS.items():
        if why := lacks(partial(_try_sections, name, blocks)):
            lacking[f"multiaxis_rotary ({name})"] = why
        else:
            made["multiaxis_rotary"][name] = _on_axes(name, blocks)
    return {op: modes for op, modes in made.items() if modes}, lacking


def _rotates_whole_heads(name: str, rotate: Rotate) -> bool:
    try:
        _try_rotation(name, rotate, 6)
    except RuntimeError:
        return True
    return False


def _try_rotation(name: str, rotate: Rotate, width: int) -> None:
    x, table = torch.ones(1, 1, 1, width), torch.ones(1, 1, 2)
    rotate(model_of(name), x, x, table, table)


def _try_sections(name: str, blocks: bool) -> None:
    x, table = torch.ones(1, 1, 1, 6), torch.ones(3, 1, 1, 3)
    _turned_on_axes(model_of(name), blocks, [1, 1, 1], x, table, table)


def _rotary(name: str, mode: _Mode) -> Implementation:
    """A model's function with the arguments of `rotary_embedding` that it has."""
    fixed = {"interleaved": mode.neighbours, "conjugate": mode.conjugate}

    def rotated(
        x: Tensor, cos: Tensor, sin: Tensor, position_ids: Tensor | None = None, *,
        interleaved: bool = False, seqlen_offsets: int | Tensor = 0, conjugate: bool = False,
    ) -> Tensor:  # fmt: skip
        for option, given in (("interleaved", interleaved), ("conjugate", conjugate)):
            if given is not fixed[option]:
                raise ValueError(f"{option}: {given}, expected {fixed[option]} of {name}")
        if position_ids is None:
            tokens = torch.arange(x.shape[1], device=x.device)
            first = torch.as_tensor(seqlen_offsets, device=x.device).view(-1, 1)
            position_ids = (first + tokens).expand(x.shape[:2])
        _check_within(position_ids, cos)
        return _halved(model_of(name), mode.rotate, x, cos[position_ids], sin[position_ids])

    function = without(rotated, [option for option, value in fixed.items() if not value])
    return Implementation(
        function, conventions=(_ROWS,), bounds=mode.bounds, unstated=dict(_REJECTION)
    )


# Models with positions on axes → whether their sections are blocks.
_SECTIONS = {"qwen2_vl": True, "qwen3_vl": False}


def _on_axes(name: str, blocks: bool) -> Implementation:
    """A model's choice of an axis for each pair, and its rotation."""

    def multiaxis_rotary(
        x: Tensor, cos: Tensor, sin: Tensor, position_ids: Tensor, axes: Tensor
    ) -> Tensor:
        _check_within(position_ids, cos)
        sections = axes.bincount(minlength=3).tolist()
        order = torch.arange(len(axes)) if blocks else _turns(axes, sections)
        cos, sin = (table[position_ids][..., order] for table in (cos, sin))
        x = x.unflatten(-1, (2, -1))[..., order].flatten(-2)
        y = _turned_on_axes(model_of(name), blocks, sections, x, cos, sin)
        back: Tensor = y.unflatten(-1, (2, -1))[..., order.argsort()].flatten(-2)
        return back

    conventions = (_ROWS, "sections are counts of the axes")
    return Implementation(
        multiaxis_rotary,
        conventions=conventions if blocks else (*conventions, _THIRDS),
        bounds={
            "tables in the dtype of x": _of_x,
            "all dims of a head rotated": _whole,
            "three axes": fixed_dims(A=3),
            "sections in blocks" if blocks else "sections interleaved": _sections(not blocks),
        },
        unstated=dict(_REJECTION),
    )


# With sections of 1, 3 and 2 of 6 pairs, height has no place for its third: see the ledger.
_THIRDS = "pair 3t + a is turn t of axis a, and time has what is left"


def _turns(axes: Tensor, sections: list[int]) -> Tensor:
    """The pairs in the order in which the model has their axes; as they are, if it cannot."""
    pair = torch.arange(len(axes))
    theirs = torch.where(pair < 3 * torch.tensor(sections)[pair % 3], pair % 3, 0)
    if theirs.bincount(minlength=3).tolist() != sections:
        return pair
    order: Tensor = axes.cpu().argsort(stable=True)[theirs.argsort(stable=True).argsort()]
    return order


def _turned_on_axes(
    model: ModuleType, blocks: bool, sections: list[int], x: Tensor, cos: Tensor, sin: Tensor
) -> Tensor:
    """Rotate by cosines and sines `[3, B, T, P]`, as this release chooses among them."""
    if blocks and hasattr(model, "apply_multimodal_rotary_pos_emb"):

        def each(
            model: ModuleType, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor
        ) -> tuple[Tensor, Tensor]:
            q, k = model.apply_multimodal_rotary_pos_emb(
                q.transpose(1, 2), k.transpose(1, 2), _twice(cos), _twice(sin), sections
            )
            return q.transpose(1, 2), k.transpose(1, 2)

        return _halved(model, each, x, cos, sin)
    kind = model.Qwen2VLRotaryEmbedding if blocks else model.Qwen3VLTextRotaryEmbedding
    if hasattr(kind, "apply_interleaved_mrope"):
        cos, sin = (kind.apply_interleaved_mrope(None, each, sections) for each in (cos, sin))
    else:
        config = SimpleNamespace(mrope_section=sections)
        cos, sin = (kind.recomposition_frequencies(config, each) for each in (cos, sin))
        half = cos.shape[-1] // 2
        cos, sin = cos[..., :half], sin[..., :half]
    return _halved(model, _heads_first, x, cos, sin)


def _halved(model: ModuleType, rotate: Rotate, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    if x.shape[2] < 2:
        return rotate(model, x, x, cos, sin)[0]
    some = x.shape[2] // 2
    return torch.cat(rotate(model, x[:, :, :some], x[:, :, some:], cos, sin), 2)


def _check_within(position_ids: Tensor, cos: Tensor) -> None:
    """Refuse what indexing would wrap around, or refuse with an error of its own."""
    if position_ids.numel() and not 0 <= position_ids.min() <= position_ids.max() < len(cos):
        raise ValueError(f"position_ids: {position_ids}, expected rows of {len(cos)}")


def _of_x(case: Case) -> Case:
    return replace(case, float32=tuple(n for n in case.float32 if n not in ("cos", "sin")))


def _whole(case: Case) -> Case:
    pairs = max(case.dims["D"] // 2, 1)
    return case.with_dims(D=2 * pairs, P=pairs)


def _some_pairs(case: Case) -> Case:
    return case.with_dims(D=max(case.dims["D"], 2), P=max(case.dims["P"], 1))


def _sections(interleaved: bool) -> Bound:
    """The seed chooses the axes of the pairs, see `catalogue.position`."""
    return lambda case: replace(case, seed=case.seed - case.seed % 3 + interleaved)
