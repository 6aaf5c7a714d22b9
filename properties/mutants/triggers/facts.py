"""Facts of a call by name, from its arguments."""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy
import torch
from torch import Tensor

import kernels
from kernels.tiles import TABLE, Entry, architecture
from properties.cases.tensors import largest_logit
from properties.catalogue.op import ANY_NUMBERS, Op, Option, Role

Facts = dict[str, Any]


def entries(op: str, mode: str) -> tuple[Entry, ...]:
    """The tile table of a mode; empty for a wrapper, whose kernels belong to another op."""
    return TABLE.get((op, mode), ())


def chooses_mode(op: Op) -> bool:
    """Whether the op can choose a mode itself."""
    mode = inspect.signature(getattr(kernels, op.name)).parameters["mode"]
    return bool(mode.default == "auto")


def of_call(op: Op, mode: str, tile: int | None, given: Mapping[str, Any]) -> Facts:
    """The facts of a call, before it runs."""
    tensors = {a.name: given[a.name] for a in op.arguments if given.get(a.name) is not None}
    known: Facts = {"mode": mode, "tile": tile, "context": "grad", "backward": False}
    known |= _of_shapes(op, given, tensors)
    known |= _of_tile(op, known, architecture(tensors[op.arguments[0].name].device))
    for o in op.outputs:
        known[f"asked {o.name}"] = o.asked_by is None or bool(given.get(o.asked_by))
        known[f"loud {o.name}"] = False
    seen: dict[int, str] = {}
    for a in op.arguments:
        x = tensors.get(a.name)
        known[f"given {a.name}"] = x is not None
        known[f"trained {a.name}"] = None
        if x is None:
            continue
        known[f"{a.name} float32"] = x.dtype == torch.float32
        known |= {f"{a.name} {fact}": True for fact in of_layout(x, a.dims.split())}
        known |= {f"{a.name} {text}": VALUES[a.role][text](x) for text in VALUES[a.role]}
        if id(x) in seen:
            known[f"{a.name} is {seen[id(x)]}"] = True
        elif a.differentiable:
            known[f"trained {a.name}"] = "yes" if x.requires_grad else "no"
        seen.setdefault(id(x), a.name)
    for name in op.packed_by[1:]:
        known[f"given {name}"] = given.get(name) is not None
    for option in op.options:
        if not option.auxiliary:
            known[option.name] = choice(option, given.get(option.name, option.default), known)
    if has_logits(op):
        known["largest logit"] = largest_logit(op, tensors, given.get("scale"))
    return known


def has_logits(op: Op) -> bool:
    """Whether its logits are products of queries and keys of the same rows, not of pages."""
    keys = [a for a in op.arguments if a.role is Role.KEY]
    return op.float32_logits and all(a.dims.startswith("B ") for a in keys)


def _of_shapes(op: Op, given: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Facts:
    known: Facts = {}
    for a in op.arguments:
        if a.name in tensors:
            known |= zip(a.dims.split(), tensors[a.name].shape, strict=True)
    known["dtype"] = str(tensors[op.arguments[0].name].dtype).removeprefix("torch.")
    bounds = [given.get(name) for name in op.packed_by]
    packed = bool(bounds) and bounds[0] is not None
    known["packed"] = packed
    lengths = {"T": [known["T"]] * known["B"] or [known["T"]]}
    if op.own_keys:
        lengths["S"] = [known["S"]] * known["B"] or [known["S"]]
        known["T against S"] = _sign(known["T"], known["S"])
    if packed:
        assert bounds[0] is not None
        own = bounds[-1] if bounds[-1] is not None else bounds[0]
        lengths = {name: (own if name == "S" else bounds[0]).diff().tolist() for name in lengths}
        known["N"] = len(lengths["T"])
        known["dtype of cu_seqlens"] = str(bounds[0].dtype).removeprefix("torch.")
        empty = [t == 0 for t in lengths["T"]]
        if len(empty) > 1:
            known |= {"empty first": empty[0], "empty last": empty[-1]}
            known["empty middle"] = any(empty[1:-1])
        known["one token"] = 1 in lengths["T"]
        known["empty keys"] = 0 in lengths.get("S", ())
    else:
        known["N"] = known["B"]
    known |= {name: max(each, default=0) for name, each in lengths.items()}
    if "G" in op.dims:
        known["R"] = known["H"] // known["G"]
    if "H" in known:
        known["states"] = known["N"] * known["H"]
    if {"K", "V"} <= set(known):
        known["K against V"] = _sign(known["K"], known["V"])
    return known


def _sign(x: int, y: int) -> str:
    return "<" if x < y else ">" if x > y else "="


def _of_tile(op: Op, known: Facts, capability: int) -> Facts:
    """The place in the call's tile, or the first that fits, where the longest sequence ends."""
    admitted = entries(op.name, known["mode"])
    if known["tile"] is not None:
        admitted = admitted[known["tile"] :]
    widest = max((known[d] for d in "KVD" if d in known), default=1)
    for entry in admitted:
        if entry.admits(widest, getattr(torch, known["dtype"]), capability):
            rest = known["T"] % entry.tokens
            chunks = -(-known["T"] // entry.tokens)
            return {"chunks": chunks, "tile's rest": rest if rest < 2 else rest - entry.tokens}
    return {}


def of_layout(x: Tensor, dims: Sequence[str]) -> Iterator[str]:
    """A tensor's memory layout in words."""
    if not x.numel():
        return
    strides = [s for s, n in zip(x.stride(), x.shape, strict=True) if n > 1]
    by_dim = {d: s for d, s, n in zip(dims, x.stride(), x.shape, strict=True) if n > 1}
    if x.data_ptr() % 16:
        yield "misaligned"
    elif x.is_contiguous():
        yield "contiguous"
    if by_dim.get(dims[-1], 1) > 1:
        yield "every second"
    elif strides == sorted(strides, reverse=True) and 0 not in strides and not x.is_contiguous():
        yield "with gaps"
    if 0 not in strides and strides != sorted(strides, reverse=True):
        yield "transposed"
    if 0 in (by_dim.get("T"), by_dim.get("S")):
        yield "stride 0 of tokens"
    if 0 in (by_dim.get("H"), by_dim.get("G")):
        yield "stride 0 of heads"


Test = Callable[[Tensor], bool]


def _some(test: Callable[[Tensor], Tensor]) -> Test:
    return lambda x: bool(test(x.detach()).any())


def _all(test: Callable[[Tensor], Tensor]) -> Test:
    return lambda x: x.numel() > 0 and bool(test(x.detach()).all())


def _open_and_shut(x: Tensor) -> bool:
    """Whether some channel has a gate of 0 and a very negative one within 16 tokens, neither
    first.
    """
    tokens = x.detach().movedim(1, 0) if x.dim() > 1 else x[:0]
    first = range(0, len(tokens), 16)
    return any(
        bool(((part == 0).any(0) & ((part <= -30) & part.isfinite()).any(0)).any())
        for part in (tokens[n : n + 16] for n in first)
    )


_ZEROS: dict[str, Test] = {
    "all 0": _all(lambda x: x == 0),
    "0 in some": lambda x: 0 < int((x.detach() == 0).sum()) < x.numel(),
}
_ANY: dict[str, Test] = {
    **_ZEROS,
    "never negative": _all(lambda x: x >= 0),
    "of both signs": lambda x: bool((x.detach() > 0).any() and (x.detach() < 0).any()),
    "past 256": _some(lambda x: x.abs() > 256),
    "below 2^-14 in some": _some(lambda x: (x != 0) & (x.abs() < 2.0**-14)),
    "below 2^-8 in all": _all(lambda x: (x.abs() < 2.0**-8) & (x != 0)),
}
_UNIT: dict[str, Test] = {
    "0 in some": _ZEROS["0 in some"],
    "of both signs": _ANY["of both signs"],
}
# Descriptions that do not affect how a number is computed.
USUAL = ("0 in some", "never negative", "of both signs")
# Predicates about an argument's numbers: description → test.
VALUES: dict[Role, dict[str, Test]] = {
    **dict.fromkeys(Role, _ZEROS),
    **dict.fromkeys((*ANY_NUMBERS, Role.STATE), _ANY),
    Role.UNIT_KEY: {**_UNIT, "longer than 1": _some(lambda x: x.norm(dim=-1) > 1.1)},
    Role.LOW_RANK: _UNIT,
    Role.STEP: {**_ZEROS, "past 4": _some(lambda x: x > 4)},
    Role.STRENGTH: {
        **_ZEROS,
        "past 1": _some(lambda x: x > 1),
        "2 in some": _some(lambda x: x == 2),
    },
    Role.RATE: {**_ZEROS, "1 in some": _some(lambda x: x == 1)},
    Role.LOG_DECAY: {
        **_ZEROS,
        "above -0.1 in all": _all(lambda x: x > -0.1),
        "of -inf": _some(lambda x: x == -torch.inf),
        "past -104": _some(lambda x: (x < -104) & x.isfinite()),
        "0 and past -30 within 16 tokens": _open_and_shut,
    },
    Role.LOGIT: {
        **_ZEROS,
        "past 88": _some(lambda x: x > 88),
        "past -88": _some(lambda x: x < -88),
    },
    Role.SCALE: {**_ZEROS, "at least 1": _some(lambda x: x >= 1)},
    Role.FACTOR: {
        **_ZEROS,
        "below -1": _some(lambda x: x < -1),
        "at least 1": _some(lambda x: x >= 1),
        "past 2^7": _some(lambda x: x.abs() > 2**7),
    },
    Role.BIAS: {**_ZEROS, "of -inf": _some(lambda x: x == -torch.inf)},
    Role.MASK: {"open": _all(lambda x: x), "shut": _all(lambda x: ~x)},
    Role.COSINE: {"1 in all": _all(lambda x: x == 1), **_ZEROS},
}


def _of_scale(value: Any, known: Facts) -> str:
    if value is None:
        return "None"
    if type(value) is numpy.float64:
        return "float64 of NumPy"
    if value in (-1, 0):
        return repr(value if type(value) is int else float(value) + 0.0)
    if type(value) is int:
        return "an int"
    return "a negative float" if value < 0 else "a positive float"


def _of_window(value: Any, known: Facts) -> str:
    if value is None:
        return "None"
    if value == 1:
        return "1"
    if value >= known.get("S", value + 1):
        return "at least S"
    return "past 512, below S" if value > 512 else "2 to 512, below S"


def _of_offsets(value: Any, known: Facts) -> str:
    if isinstance(value, Tensor):
        return f"one each, {str(value.dtype).removeprefix('torch.')}"
    return "0" if value == 0 else "past 2^16" if value > 2**15 else "an int"


def _of_number(value: Any, known: Facts) -> str:
    if type(value) is numpy.float64:
        return "float64 of NumPy"
    if value is None or type(value) is int:
        return "None" if value is None else "an int"
    return "a float below 1" if value < 1 else "a float from 1 on"


def _of_layers(value: Any, known: Facts) -> str:
    return "0" if value == 0 else "1" if value == 1 else "24" if value == 24 else "in between"


_SIGNS = ("a positive float", "a negative float")
_NUMBERS = ("an int", "a float below 1", "a float from 1 on", "float64 of NumPy")
_CHOICES: dict[str, tuple[Callable[[Any, Facts], str], tuple[str, ...]]] = {
    "scale": (
        _of_scale,
        ("None", "-1", "-1.0", "0", "0.0", "an int", *_SIGNS, "float64 of NumPy"),
    ),
    "window": (
        _of_window,
        ("None", "1", "2 to 512, below S", "past 512, below S", "at least S"),
    ),
    "softcap": (_of_number, ("None", *_NUMBERS)),
    "structure": (lambda value, known: "rules" if value else "None", ("None", "rules")),
    "eps": (_of_number, _NUMBERS),
    "seqlen_offsets": (
        _of_offsets,
        ("0", "an int", "past 2^16", "one each, int32", "one each, int64"),
    ),
    "num_layers": (_of_layers, ("1", "in between", "24")),
    "layer_idx": (_of_layers, ("0", "1", "in between", "24")),
    "activation": (lambda value, known: str(value), ("None", "silu")),
}
# Values of an option that differ from another only in type.
TYPES = {
    "scale": ("0", "an int", "float64 of NumPy"),
    "softcap": ("an int", "float64 of NumPy"),
    "eps": ("an int", "float64 of NumPy"),
}


def choices(option: Option) -> tuple[str, ...]:
    return _CHOICES[option.name][1] if option.name in _CHOICES else ("False", "True")


def choice(option: Option, value: Any, known: Facts) -> str:
    return _CHOICES[option.name][0](value, known) if option.name in _CHOICES else str(value)
