"""A case: everything that determines one call of an op, as plain data."""

import json
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from types import UnionType
from typing import Any, get_args, get_origin

import torch

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]


@dataclass(frozen=True, kw_only=True)
class Case:
    """One call of an op. Tensors are built from it and never drawn.

    Args:
        op, mode: the entry of the catalogue and the kernel's mode.
        auto: the call leaves the mode to the op, which may choose another one.
        dtype: of the activations: "float32", "bfloat16", "float16".
        dims: sizes by the letters of the catalogue entry, for example `{"B": 2, "H": 3, "K": 5}`.
        lengths: query tokens of each sequence; one number for the whole batch in a dense case.
        key_lengths: key tokens of each sequence; None if queries and keys are the same tokens.
        packed: sequences are concatenated behind `cu_seqlens`, and `B` is 1.
        given: names of the optional tensors that the call passes.
        float32: names of the tensors that are float32 in every `dtype`.
        broadcast: dims that have size 1 in a tensor that may be broadcast, `{"mask": "BT"}`.
        options: the other arguments of the op.
        tile: entry of the tile table; None lets the op choose. Of another library, the position of
            the config that its autotuned kernels run with, see `properties.device.configured`.
        architecture: the GPU that the simulator reports, a name of `properties.architectures`;
            None is Hopper there and the only choice on a GPU.
        values: the recipe that fills the tensors.
        layout: the memory layout of the inputs.
        layouts: exceptions to `layout` by tensor; "do" is the cotangent of the output o.
        same: argument → another argument whose tensor is passed for it too, or the first channels
            of it if the argument has fewer, as values that are a part of latent keys.
        frozen: differentiable tensors that need no gradient in this call.
        silent: requested outputs that get no cotangent.
        cotangents: how large those of the other outputs are, a name of
            `properties.cases.values.COTANGENTS`.
        context: the context of the call, a name of `properties.cases.contexts`.
        earlier: options of a call just before this one, on the same tensor objects with other
            numbers in them; options not named are as in this call. None for no such call.
        numbers: "python", or "numpy" for options that are NumPy float64 scalars.
        seed: of the generator behind the recipe.
    """

    op: str
    mode: str
    dtype: str
    dims: Mapping[str, int]
    lengths: tuple[int, ...]
    auto: bool = False
    key_lengths: tuple[int, ...] | None = None
    packed: bool = False
    given: tuple[str, ...] = ()
    float32: tuple[str, ...] = ()
    broadcast: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    tile: int | None = None
    architecture: str | None = None
    values: str = "gaussian"
    layout: str = "contiguous"
    layouts: Mapping[str, str] = field(default_factory=dict)
    same: Mapping[str, str] = field(default_factory=dict)
    frozen: tuple[str, ...] = ()
    silent: tuple[str, ...] = ()
    cotangents: str = "ordinary"
    context: str = "grad"
    earlier: Mapping[str, Any] | None = None
    numbers: str = "python"
    seed: int = 0

    def with_options(self, **options: Any) -> "Case":
        return replace(self, options={**self.options, **options})

    def with_dims(self, **dims: int) -> "Case":
        return replace(self, dims={**self.dims, **dims})

    @property
    def torch_dtype(self) -> torch.dtype:
        dtype = getattr(torch, self.dtype)
        assert isinstance(dtype, torch.dtype)
        return dtype

    @property
    def called_mode(self) -> str:
        return "auto" if self.auto else self.mode

    @property
    def sequences(self) -> int:
        """The number of sequences, packed or rows of a batch."""
        return len(self.lengths) if self.packed else self.dims["B"]

    def layout_of(self, name: str) -> str:
        return self.layouts.get(name, self.layout)

    def without(self, *names: str) -> "Case":
        """Return the case without optional tensors of these names."""

        def others(known: tuple[str, ...]) -> tuple[str, ...]:
            return tuple(name for name in known if name not in names)

        def rest(known: Mapping[str, str]) -> dict[str, str]:
            return {name: value for name, value in known.items() if name not in names}

        return replace(
            self,
            given=others(self.given),
            float32=others(self.float32),
            frozen=others(self.frozen),
            broadcast=rest(self.broadcast),
            layouts=rest(self.layouts),
            same={name: x for name, x in rest(self.same).items() if x not in names},
        )

    def _stated(self) -> dict[str, Any]:
        """The fields that differ from their defaults."""
        return {
            f.name: getattr(self, f.name)
            for f in fields(self)
            if getattr(self, f.name) != (f.default if f.default_factory is MISSING else {})
        }

    def to_json(self) -> str:
        """Return one line of JSON for `from_json`, without defaults."""
        return json.dumps({**self._stated(), "dims": dict(self.dims)}, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> "Case":
        """Read a case that `to_json` wrote.

        Raises:
            ValueError: the text is not JSON, or not the fields of a case.
        """
        try:
            data = json.loads(text)
        except (json.JSONDecodeError, RecursionError):
            data = None
        if not isinstance(data, dict):
            raise ValueError(f"case: {text!r}, expected the JSON object of a case")
        known = {f.name: f for f in fields(cls)}
        for name, value in data.items():
            if name not in known:
                raise ValueError(f"case: {name!r}, expected one of {', '.join(known)}")
            if not _is_a(value, known[name].type):
                raise ValueError(f"case: {name}: {value!r}, expected {_named(known[name].type)}")
        required = [n for n, f in known.items() if f.default is f.default_factory is MISSING]
        absent = [name for name in required if name not in data]
        if absent:
            raise ValueError(f"case: no {', '.join(absent)}, expected all")
        given: dict[str, Any] = {n: tuple(v) if type(v) is list else v for n, v in data.items()}
        return cls(**given)

    @classmethod
    def of(
        cls,
        op: str,
        mode: str,
        dims: Mapping[str, int],
        lengths: tuple[int, ...],
        dtype: str = "float32",
        **more: Any,
    ) -> "Case":
        """A case in few words."""
        return cls(op=op, mode=mode, dims=dims, lengths=lengths, dtype=dtype, **more)

    def line(self) -> str:
        """Return the case as one line of Python to paste."""
        shown = [f"{name}={value!r}" for name, value in self._stated().items()]
        return f"Case({', '.join(shown)})"

    def __hash__(self) -> int:
        return hash(self.to_json())


def _is_a(value: Json, kind: Any) -> bool:
    """Whether JSON has the type of a field, where a list is a tuple."""
    outer, inner = get_origin(kind) or kind, get_args(kind)
    if outer is UnionType:
        return any(_is_a(value, one) for one in inner)
    if outer is tuple:
        return isinstance(value, list) and all(_is_a(one, inner[0]) for one in value)
    if outer is Mapping:
        return isinstance(value, dict) and all(_is_a(one, inner[1]) for one in value.values())
    return kind is Any or type(value) is kind


def _named(kind: Any) -> str:
    """A type in the words of JSON."""
    outer, inner = get_origin(kind) or kind, get_args(kind)
    if outer is UnionType:
        return " or ".join(map(_named, inner))
    if outer is tuple:
        return f"a list of {_named(inner[0])}"
    if outer is Mapping:
        return "an object" if inner[1] is Any else f"an object of {_named(inner[1])}"
    return {str: "text", int: "an integer", bool: "true or false"}.get(kind, "null")
