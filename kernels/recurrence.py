"""The public functions of recurrences over tokens, of a signature and the kernels of each mode.

Where a recurrence is not stable and overflows, the rows before the overflow in the same chunk may
be NaN too: a product with the triangle of a chunk multiplies what is not seen by 0.
"""

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, ParamSpec, TypedDict, TypeVar, get_args

import torch
from jaxtyping import Int
from torch import Tensor

from kernels import arguments, tiles
from kernels.arguments import BAD_BOUNDARIES, describe
from kernels.modes import check_mode, choose_mode
from kernels.op import TileOption, axes, op, spelled_out
from kernels.passes import Mode, Passes, Registered, Results, name_of, passes_of, register
from kernels.primitives.layout import with_dense_gradient
from kernels.scale import BAD_SCALE, resolve_scale
from kernels.signature import Signature

P = ParamSpec("P")
R = TypeVar("R")

_ABOUT_MODES = {
    "chunk": "computes all chunks of tokens at once and carries the state from chunk to chunk",
    "fused_chunk": "carries the state through the chunks in one kernel",
    "fused_recurrent": "walks token by token in one kernel, for decoding and short sequences",
    "parallel": "takes all pairs of tokens",
}
_STATE_TEXTS = {
    "initial_state": "float32.",
    "final_state": "float32; None unless `output_final_state`.",
}

_HEAD_DIMS = ("K", "V", "M")

Transform = Callable[[Passes], Passes]
Around = Callable[..., Results]


@dataclass(frozen=True)
class _Signature(Signature):
    """The signature of a recurrence, and what its decorator adds.

    Args:
        recurrent_only: arguments that the mode chunk does not have.
        neutral, around: see `recurrence`.
    """

    recurrent_only: tuple[str, ...] = ()
    neutral: Mapping[str, float] = field(default_factory=dict)
    around: Around | None = None

    def check(
        self,
        given: Mapping[str, Any],
        *,
        grouped: Sequence[str] = (),
        within: torch.dtype | None = None,
    ) -> tuple[dict[str, int], torch.dtype, Tensor | None]:
        """Check flags, tensors and boundaries; `grouped` and `within` as in `compute`.

        Returns:
            the size of each dim, the dtype of the operands, and `cu_seqlens`, contiguous.
        """
        sizes, dtype = self.check_tensors(given, grouped=grouped, within=within)
        for letter in _HEAD_DIMS:
            if letter in sizes:
                name = next(n for n, spec in self.dims.items() if spec.endswith(letter))
                arguments.check_range(f"{letter} (the last dim of {name})", sizes[letter], 1, 256)
        if not grouped and "G" in sizes and sizes["G"] != sizes["H"]:
            heads = next(n for n, spec in self.dims.items() if spec.endswith("H V"))
            groups = " and ".join(n for n, spec in self.dims.items() if "G" in spec)
            arguments.check_groups(sizes, heads, groups)
        device = given[self.same_dtype[0]].device
        cu_seqlens = given["cu_seqlens"]
        cu_seqlens = arguments.check_cu_seqlens("cu_seqlens", cu_seqlens, sizes["B"], device)
        sizes["N"] = arguments.count_sequences(sizes["B"], cu_seqlens)
        sizes["normalize"] = int(given.get("normalize", False))
        if "initial_state" in self.dims:
            self._check_state(given["initial_state"], sizes)
        return sizes, dtype, cu_seqlens

    def _check_state(self, state: Tensor | None, sizes: Mapping[str, int]) -> None:
        dims = self.dims["initial_state"].split()
        wanted = [_size(dim, sizes) for dim in dims]
        if state is not None and [*state.shape] != wanted:
            raise ValueError(
                f"initial_state: {describe(state)}, expected [{', '.join(dims)}] = {wanted}"
            )


# (op, mode) → what `compute` calls.
REGISTERED: dict[tuple[str, str], Registered] = {}
_SIGNATURES: dict[str, _Signature] = {}


class _Scale(TypedDict, total=False):
    scale: float | None


class _UnitKeys(TypedDict, total=False):
    use_qk_l2norm_in_kernel: bool


class _States(TypedDict, total=False):
    initial_state: Tensor | None
    output_final_state: bool


class _Reverse(TypedDict, total=False):
    reverse: bool


class _Packing(TypedDict, total=False):
    cu_seqlens: Int[Tensor, " N+1"] | None


class StatelessOptions(_Scale, _Packing, TileOption):
    """Options of an op that keeps no state, in the order of its signature."""


class StateOptions(_States, _Packing, TileOption):
    """Options of a recurrence without a scale, in the order of its signature."""


class Options(_Scale, _States, _Packing, TileOption):
    """Options of a recurrence."""


class DeltaOptions(_Scale, _UnitKeys, _States, _Packing, TileOption):
    """Options of a delta rule."""


class ReversibleOptions(_Scale, _States, _Reverse, _Packing, TileOption):
    """Options of a recurrence that also runs from the last token to the first."""


def recurrence(
    *modules: Mode,
    around: Around | None = None,
    transform: Transform | None = None,
    saves: bool = False,
    same_dtype: Sequence[str] = ("q", "k", "v"),
    neutral: Mapping[str, float] = MappingProxyType({}),
    names: Mapping[str, str] = MappingProxyType({}),
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Make an op of a signature: a `torch.library` op for each mode, and what users call.

    Args:
        modules: one for each mode, which has its name.
        around: `(call, **arguments) -> (o, S)`: it calls the mode with arguments of its own choice,
            and may change what that returns.
        transform: changes what a mode computes, its gradients too.
        saves: let modes save what they can for the backward pass, where there will be one.
        same_dtype: tensors that must have one dtype, the first of them setting it. Other inputs
            may be float32 instead, and states are.
        neutral: the values of tensors that are left out; others reach the kernels as None.
        names: argument of the op → its name in the kernels, if they differ.

    Returns:
        A decorator of a signature without a body.
    """

    def decorate(page: Callable[P, R]) -> Callable[P, R]:
        name, parameters = page.__name__, spelled_out(page).parameters
        modes = {name_of(module): module for module in modules}
        declared = get_args(parameters["mode"].annotation)
        if declared != ("auto", *modes):
            raise ValueError(f"{name}: modes {declared}, expected 'auto', {[*modes]}")
        passes = {mode: passes_of(module, saves) for mode, module in modes.items()}
        if transform is not None:
            passes = {mode: transform(both) for mode, both in passes.items()}
        for mode, both in passes.items():
            REGISTERED[name, mode] = register(name, mode, both, parameters, same_dtype, names)
        taken = frozenset().union(*(both.takes for both in passes.values()))
        not_in_chunk = taken - passes["chunk"].takes if "chunk" in passes else frozenset()
        _SIGNATURES[name] = _Signature.of(
            page,
            same_dtype,
            recurrent_only=tuple(n for n in parameters if n in not_in_chunk),
            neutral=neutral,
            around=around,
        )
        lacking = [
            f"`{n}` with mode {' or '.join(repr(m) for m, p in passes.items() if n not in p.takes)}"
            for n in parameters
            if n in not_in_chunk
        ]
        return documented(
            functools.partial(compute, name),
            mode=_about(modes),
            tile=f'Index into `kernels.tiles.TABLE["{name}", mode]`; None chooses by head '
            "dim, dtype, device and how many sequences and heads there are.",
            same_dtype=same_dtype,
            raises=lacking,
        )(page)

    return decorate


def documented(
    run: Callable[..., Any],
    *,
    mode: str,
    tile: str,
    same_dtype: Sequence[str] = ("q", "k", "v"),
    outputs: Sequence[str] = ("o", "final_state"),
    raises: Sequence[str] = (),
    sums: str = "All sums are float32.",
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Make the public function of a recurrence, or of an op that calls one.

    Args:
        run: takes every argument by its name.
        mode, tile, sums: what the docstring says of these arguments, and of precision.
        same_dtype: the names of tensors that must have one dtype, the first of them setting it.
        outputs: the names of the results.
        raises: reasons for a ValueError that no other recurrence has.
    """

    both = ", through both returns" if len(outputs) > 1 else ""

    def decorate(page: Callable[P, R]) -> Callable[P, R]:
        parameters = spelled_out(page).parameters
        dims = {dim for parameter in parameters.values() for dim in axes(parameter.annotation)}
        limited = [dim for dim in _HEAD_DIMS if dim in dims]
        verb = "are" if len(limited) > 1 else "is"
        limit = f" {_listed(limited, 'and')} {verb} 1 to 256." if limited else ""
        values = [f"{_listed(limited, 'or')} outside 1 to 256"] if limited else []
        if "G" in dims:
            values.append("H not G, 2 G, 3 G, ...")
        if "scale" in parameters:
            values.append(BAD_SCALE)
        return op(
            run,
            outputs=outputs,
            about=f"Differentiable once{both}. {sums}{limit}",
            same_dtype=same_dtype,
            texts={**_STATE_TEXTS, "mode": mode, "tile": tile},
            raises=[*values, BAD_BOUNDARIES, *raises],
        )(page)

    return decorate


def _listed(names: Sequence[str], before_last: str) -> str:
    *others, last = names
    return f"{', '.join(others)} {before_last} {last}" if others else last


def wrapper(
    run: Callable[..., Any],
    wraps: str,
    *,
    same_dtype: Sequence[str] = ("q", "k", "v"),
    outputs: Sequence[str] = ("o", "final_state"),
    raises: Sequence[str] = (),
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Make the public function of an op that calls the recurrence `wraps`: see `documented`.

    Args:
        run: takes every argument by its name, and may launch kernels before it calls `wraps`: what
            annotations describe is checked by then, but not the values of `cu_seqlens`, which the
            kernels of `wraps` check. It calls `compute` with `within` where it has tensors of 16
            bits in float32, so that their gradients stay float32, and otherwise the op itself.
        wraps: the name of the recurrence, whose modes and tiles the op has.
        same_dtype, outputs, raises: as for `documented`.
    """

    def decorate(page: Callable[P, R]) -> Callable[P, R]:
        signature = _Signature.of(page, same_dtype)

        def checked(**given: Any) -> Any:
            sizes, dtype, given["cu_seqlens"] = signature.check(given)
            if "scale" in given:
                resolve_scale(given["scale"], sizes["K"])
            check_mode(given["mode"], *signature.modes)
            if given["mode"] != "auto":  # The op that is wrapped chooses the mode, checks its tile.
                tiles.choose(
                    wraps, given["mode"], dim=_largest(sizes), dtype=dtype,
                    device=given[same_dtype[0]].device, tile=given["tile"],
                )  # fmt: skip
            results = run(**given)
            if isinstance(results, Tensor):
                return with_dense_gradient(results)
            return tuple(None if x is None else with_dense_gradient(x) for x in results)

        one = f"That of `{wraps}`."
        return documented(
            checked,
            mode=one,
            tile=one,
            same_dtype=same_dtype,
            outputs=outputs,
            raises=raises,
            sums=f"Sums are float32; what `{wraps}` returns may be rounded before more is added.",
        )(page)

    return decorate


def own_modes(
    *runs: Callable[..., Any],
    same_dtype: Sequence[str] = ("q", "k", "v"),
    outputs: Sequence[str] = ("o", "final_state"),
    raises: Sequence[str] = (),
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Make the public function of an op with kernels of its own: see `documented`.

    The op keeps no state, or one that is not K by V.

    Args:
        runs: one for each mode, in the order of the annotation of `mode`. A run takes every other
            argument by its name, checked: `scale` is a number, and `tile` an index into
            `kernels.tiles.TABLE`.
        same_dtype, outputs, raises: as for `documented`.
    """

    def decorate(page: Callable[P, R]) -> Callable[P, R]:
        name, signature = page.__name__, _Signature.of(page, same_dtype)
        modes = dict(zip(signature.modes, runs, strict=True))

        def checked(*, mode: str, **given: Any) -> Any:
            sizes, dtype, given["cu_seqlens"] = signature.check(given)
            mode = choose_mode(
                mode, signature.modes, tokens=sizes["B"] * sizes["T"], sequences=sizes["N"]
            )
            if "scale" in given:
                given["scale"] = resolve_scale(given["scale"], sizes["K"])
            given["tile"] = tiles.choose(
                name, mode, dim=_largest(sizes), dtype=dtype,
                device=given[same_dtype[0]].device, tile=given["tile"],
            )  # fmt: skip
            return modes[mode](**given)

        return documented(
            checked,
            mode=_about(modes),
            tile=f'Index into `kernels.tiles.TABLE["{name}", mode]`; None chooses by head dim, '
            "dtype and device.",
            same_dtype=same_dtype,
            outputs=outputs,
            raises=raises,
        )(page)

    return decorate


def _about(modes: Collection[str]) -> str:
    which = "; ".join(f"`{mode}` {_ABOUT_MODES[mode]}" for mode in modes)
    return f"{which}; `auto` chooses by the length." if len(modes) > 1 else f"{which}."


def _largest(sizes: Mapping[str, int]) -> int:
    """The largest head dim, at least 1."""
    return max([1, *(sizes[letter] for letter in _HEAD_DIMS if letter in sizes)])


def stateful(
    run: Callable[..., Any],
    *,
    outputs: Sequence[str],
    same_dtype: Sequence[str] = (),
    texts: Mapping[str, str] = MappingProxyType({}),
    raises: Sequence[str] = (),
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Make the public function of an op over channels that keeps a state: see `kernels.op.op`."""
    return op(
        run,
        outputs=outputs,
        about="Differentiable once, through both returns. All sums are float32.",
        same_dtype=same_dtype,
        texts={**_STATE_TEXTS, **texts},
        raises=[*raises, BAD_BOUNDARIES],
    )


def _size(dim: str, sizes: Mapping[str, int]) -> int:
    """The size of a dim such as `V+1`."""
    return sum(int(term) if term.isdecimal() else sizes[term] for term in dim.split("+"))


def compute(
    op: str,
    *,
    grouped: Sequence[str] = (),
    within: torch.dtype | None = None,
    **given: Any,
) -> tuple[Tensor, Tensor | None]:
    """Check the arguments of an op, resolve its options, and call its mode.

    Args:
        grouped: tensors that have G heads, H a multiple, where the signature has H, and of which
            head h reads head h // (H / G). The caller has checked the multiple.
        within: the dtype of the kernel's operands and of the output, where some tensors are
            `widened`: the kernel rounds them, and their gradients stay float32.
    """
    signature = _SIGNATURES[op]
    sizes, dtype, cu_seqlens = signature.check(given, grouped=grouped, within=within)
    v, sequences = given["v"], sizes["N"]
    scale = resolve_scale(given["scale"], sizes["K"])
    mode = choose_mode(
        given["mode"],
        signature.modes,
        tokens=sizes["B"] * sizes["T"],
        sequences=sequences,
        recurrent_only={
            name: given[name] is not None and given[name] is not False
            for name in signature.recurrent_only
        },
    )
    tile = tiles.choose(
        op, mode, dim=max(sizes["K"], sizes["V"]), dtype=dtype, device=v.device,
        tile=given["tile"],
        states=tiles.count_states(sequences, sizes["H"], sizes["V"], cu_seqlens),
    )  # fmt: skip

    for name, value in signature.neutral.items():
        if given[name] is None:
            shape = [sizes[dim] for dim in signature.dims[name].split()]
            given[name] = torch.full(shape, value, dtype=torch.float32, device=v.device)
    given |= {"scale": scale, "cu_seqlens": cu_seqlens, "tile": tile}
    given |= {"dtype": dtype, "out_dtype": dtype}
    call = REGISTERED[op, mode]
    o, final_state = call(**given) if signature.around is None else signature.around(call, **given)
    return o, final_state if given["output_final_state"] else None
