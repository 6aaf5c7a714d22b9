"""A declaration from the oracle's signature, and from what is special about the op.

The signature says names, dims, dtypes and defaults. Names that ops share have one meaning here,
and laws follow from what an op has. An entry of the catalogue states the exceptions.
"""

import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from inspect import Parameter, Signature
from types import MappingProxyType
from typing import Any, get_args, get_origin

import torch
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from properties.cases.case import Case
from properties.cases.inputs import Inputs
from properties.catalogue.draws import BAD_FLAGS, BAD_SCALES, asked, head_dims, scales
from properties.catalogue.op import Argument, BadCall, Fill, Mode, Op, Option, Output, Role, always
from reference.arguments import arrays, same_dtype
from reference.op import Op as Page
from reference.op import axes
from reference.recurrence import size_of

# Tensors of other names hold values.
_ROLES = {
    "q": Role.QUERY,
    "k": Role.KEY,
    "g": Role.LOG_DECAY,
    "gv": Role.LOG_DECAY,
    "gk": Role.LOG_DECAY,
    "beta": Role.STRENGTH,
    "initial_state": Role.STATE,
}
_SCALE = Option(
    "scale",
    None,
    lambda case: scales(),
    bad=BAD_SCALES,
    number=True,
    # Powers of two, none of them the sentinel -1.
    exact=(0.5, -0.5, 2.0, -2.0, 1.0),
    switch=lambda case: -0.5,
)


def _count(often: int) -> SearchStrategy[int]:
    """Sizes up to `often` in nine of ten cases, up to 8 in one; `extents` draws dozens."""
    seldom = [*range(often + 1, 9)]
    return st.sampled_from([*range(1, often + 1)] * (9 * len(seldom) // often) + seldom)


# In the order in which they are drawn. H is G times R where there are groups; without them R is
# another dim.
_DIMS: Mapping[str, SearchStrategy[int]] = {
    "B": _count(3),
    "G": st.integers(1, 3),
    "R": _count(4),
    "H": _count(3),
    "K": head_dims(),
    "V": head_dims(),
    "D": head_dims(),
}
# Sizes of dims that few ops have: layers, slots, axes.
_COUNTS = st.one_of(st.integers(1, 4), st.integers(1, 9))
_TOKENS = {"T_q": "T", "T_k": "S"}

# Recipes of attention: logits that are far apart, and the values that they weigh.
LOGITS = (
    "gaussian",
    "large_logits",
    "late_maximum",
    "early_maximum",
    "large_values",
    "offset",
    "uneven",
    "one_hot_values",
    "zeros",
    "cancelling",
)
# Recipes of the gates of recurrences. Attention lists its own, `lowest_gates` among them.
RECURRENCE_GATES = ("extreme_gates", "strong_gates", "shut_gates", "closed_gates", "growing_gates")
# A wrapper is a few lines before the kernels of another op: the laws that these may break.
_LAWS_OF_A_WRAPPER = (
    "differential",
    "splitting",
    "packing",
    "context_invariance",
    "request_invariance",
    "plumbing",
    "untouched_inputs",
    "rejection",
)


def declare(
    oracle: Page[..., Any],
    *,
    recipes: Sequence[str],
    modes: Sequence[Mode] = (),
    work: Callable[[Mapping[str, int]], float] | None = None,
    wraps: Op | None = None,
    roles: Mapping[str, Role] = MappingProxyType({}),
    constants: Sequence[str] = (),
    indices: Mapping[str, Fill] = MappingProxyType({}),
    alike: Sequence[str] = (),
    nonlinear: Sequence[str] = (),
    options: Sequence[Option] = (),
    dims: Mapping[str, SearchStrategy[int]] = MappingProxyType({}),
    sizes: Callable[[Case], dict[str, int]] = lambda case: {},
    computed: Sequence[str] = (),
    settle: Callable[[Case], Case] = lambda case: case,
    without: Sequence[str] = (),
    **special: Any,
) -> Op:
    """Declare an op by its signature and by what is special about it.

    Args:
        recipes: as of `Op`. The recipes of gates are added where there are gates, unless some of
            them are stated, and `wide_range` where tensors are `of_any_size`.
        modes, work: as of `Op`; a wrapper has those of the op that it wraps, unless they
            are stated.
        roles: of tensors whose names do not say what they mean.
        constants: tensors that get no gradient.
        indices: tensors of integers → what fills them.
        alike: tensors drawn in the dtype of the activations, although the signature allows others.
        nonlinear: outputs that are not linear in the op's `linear_in`.
        options: those that are neither flags nor common. An option that is not stated keeps its
            default in every case.
        dims: letter → the strategy for its size, of letters that other ops do not have.
        sizes: as of `Op`; H of groups is computed besides.
        computed: the letters that `sizes` computes.
        settle: as of `Op`. Options already have their exact values in a case of small integers.
        without: laws that do not apply to the op.
        special: further fields of `Op`, which replace those that follow from the signature. The
            `quiet_form` is the second form, or with `float32_logits` the definition: only operands
            of matrix products are rounded then, and the second form's sums by key have none.
            `of_any_size=None` keeps all tensors to ordinary numbers.
    """
    signature = inspect.signature(oracle)
    arguments = tuple(_arguments(oracle, signature, roles, constants, indices, alike))
    outputs = tuple(_outputs(oracle, signature, nonlinear))
    stated = {option.name: option for option in options}
    options = tuple(_options(signature, stated, outputs, indices))
    names = {*(x.name for x in arguments), *(option.name for option in options)}
    if wraps is not None:
        modes = modes or [Mode(mode.name, mode.refuses & names) for mode in wraps.modes]
        work = work or wraps.work
        special["wraps"] = wraps.name
    if work is None:
        raise ValueError(f"{oracle.__name__}: no work, expected some, or an op that it wraps")
    tensors: tuple[Argument | Output, ...] = (*arguments, *outputs)
    every = {dim for x in tensors for dim in x.dims.split()}
    letters = {letter for dim in every for letter in re.findall(r"\b[A-Z]\b", dim)}
    grouped = {"G", "H"} <= letters
    values = tuple(x.name for x in arguments if x.role in (Role.VALUE, Role.STATE))
    linear_in = special.get("linear_in", values)
    any_size = special.pop("of_any_size", (lambda case: linear_in) if linear_in else None)
    fields: dict[str, Any] = {
        "name": oracle.__name__,
        "oracle": oracle,
        "second_form": oracle.second_form,
        "quiet_form": oracle if special.get("float32_logits") else oracle.second_form,
        "modes": tuple(modes),
        "arguments": arguments,
        "options": options,
        "outputs": outputs,
        "dims": _drawn_dims(letters - {*computed, *special.get("rows", ())}, dims, grouped),
        "work": work,
        "recipes": _recipes(recipes, arguments, of_any_size=any_size is not None),
        "sizes": _sizes(every, options, grouped, sizes),
        "settle": _settled(options, settle),
        "packed_by": tuple(filter(_packs, signature.parameters)),
        "own_keys": "S" in every,
        "linear_in": linear_in,
        "continues_by": _continuation(names, every),
        **({"mistakes": more_states} if "initial_state" in names else {}),
        **({} if any_size is None else {"of_any_size": any_size}),
        **special,
    }
    laws = tuple(law for law in _laws(fields) if law not in without)
    return Op(**{"laws": laws, **fields})


def rounding_flag(name: str) -> Option:
    """A boolean option that rounds the results of small integers, as a quotient or a square root is
    exact only by luck.
    """
    return Option(name, False, lambda case: st.booleans(), bad=BAD_FLAGS, exact=(False,))


def more_states(case: Case, inputs: Inputs) -> Iterator[BadCall]:
    """States of another width, or of more sequences."""
    state = inputs.tensors.get("initial_state")
    if state is not None:
        wide = torch.cat([state, state[..., :1]], -1)
        yield "a state that is too wide", {"initial_state": wide}, "initial_state"
        yield "a state too many", {"initial_state": torch.cat([state, state[:1]])}, "initial_state"


def _packs(name: str) -> bool:
    return name.startswith("cu_seqlens")


def _is_tensor(parameter: Parameter) -> bool:
    """Whether it is a tensor of numbers or truths, not of boundaries or offsets."""
    return bool({"Float", "Bool"} & {kind.dtype.__name__ for kind in arrays(parameter.annotation)})


def _dims(annotation: Any) -> str:
    """Dims as the catalogue calls them; `#B` may have size 1 instead of B."""
    return " ".join(
        "#" * dim.startswith("#") + _TOKENS.get(dim.strip("#"), dim.strip("#"))
        for dim in axes(annotation)
    )


def _arguments(
    oracle: Page[..., Any],
    signature: Signature,
    roles: Mapping[str, Role],
    constants: Sequence[str],
    indices: Mapping[str, Fill],
    others_alike: Sequence[str],
) -> Iterator[Argument]:
    first = next(iter(signature.parameters))
    alike = {first, *same_dtype(oracle)} if first in same_dtype(oracle) else {first}
    alike |= {*others_alike}
    for name, parameter in signature.parameters.items():
        if name in indices:
            role, dtype = Role.INDEX, "index"
        elif not _is_tensor(parameter):
            continue
        else:
            role, dtype = _ROLES.get(name, Role.VALUE), "case" if name in alike else "either"
            if arrays(parameter.annotation)[0].dtype.__name__ == "Bool":
                dtype = "bool"
            elif name == "initial_state":
                dtype = "float32"
        yield Argument(
            name,
            _dims(parameter.annotation),
            roles.get(name, role),
            optional=parameter.default is None,
            differentiable=name not in indices and name not in constants,
            dtype=dtype,
            fill=indices.get(name),
        )


def _outputs(
    oracle: Page[..., Any], signature: Signature, nonlinear: Sequence[str]
) -> Iterator[Output]:
    returned = signature.return_annotation
    each = get_args(returned) if get_origin(returned) is tuple else (returned,)
    for name, annotation in zip(oracle.outputs, each, strict=True):
        asking = {f"output_{name}", f"return_{name}"} & signature.parameters.keys()
        yield Output(
            name,
            _dims(annotation),
            asked_by=next(iter(asking), None),
            dtype="float32" if asking or name == "lse" else "case",
            linear=name not in nonlinear,
        )


def _options(
    signature: Signature,
    stated: Mapping[str, Option],
    outputs: Sequence[Output],
    indices: Mapping[str, Fill],
) -> Iterator[Option]:
    """Yield options in the order of the signature, stated ones in theirs, auxiliary ones last."""
    others = {
        n: p
        for n, p in signature.parameters.items()
        if not (_is_tensor(p) or _packs(n) or n in indices)
    }
    auxiliary = [output.asked_by for output in outputs if output.asked_by is not None]
    in_order = iter(stated.values())
    for name, parameter in others.items():
        default = None if parameter.default is parameter.empty else parameter.default
        if name in stated:
            option = next(in_order)
            default = others[option.name].default
            yield option if default is parameter.empty else replace(option, default=default)
        elif name == "scale":
            yield replace(_SCALE, default=default)
        elif name in auxiliary:
            continue
        elif isinstance(default, bool):
            yield Option(name, default, lambda case: st.booleans(), bad=BAD_FLAGS)
        else:
            yield Option(name, default, always(default))
    for name in auxiliary:
        yield Option(name, False, asked, bad=BAD_FLAGS, auxiliary=True)


def _recipes(
    stated: Sequence[str], arguments: Sequence[Argument], *, of_any_size: bool
) -> tuple[str, ...]:
    gated = any(argument.role is Role.LOG_DECAY for argument in arguments)
    gates = RECURRENCE_GATES if gated and not {*RECURRENCE_GATES} & {*stated} else ()
    return (*stated, *gates, *(["wide_range"] if of_any_size else []))


def _drawn_dims(
    letters: AbstractSet[str], stated: Mapping[str, SearchStrategy[int]], grouped: bool
) -> dict[str, SearchStrategy[int]]:
    """The strategy for the size of each letter that is drawn, in the order in which they are."""
    # Tokens and sequences follow from the lengths, and H from G and R.
    drawn = letters - {"T", "S", "N"}
    if grouped:
        drawn = drawn - {"H"} | {"R"}
    known = {**_DIMS, **dict.fromkeys(sorted(drawn - {*_DIMS}), _COUNTS), **stated}
    return {letter: size for letter, size in known.items() if letter in drawn}


def _sizes(
    dims: Iterable[str],
    options: Sequence[Option],
    grouped: bool,
    others: Callable[[Case], dict[str, int]],
) -> Callable[[Case], dict[str, int]]:
    """A function of a case to the sizes that are not drawn: of numbers, sums, and H of groups."""
    numbers = {dim: int(dim) for dim in dims if dim.isdecimal()}
    sums = [dim for dim in dims if "+" in dim or "-" in dim]
    defaults = {option.name: option.default for option in options}

    def sizes(case: Case) -> dict[str, int]:
        terms = {**defaults, **case.options, **case.dims}
        known = numbers | {dim: size_of(dim, terms) for dim in sums}
        known |= {"H": case.dims["G"] * case.dims["R"]} if grouped else {}
        return known | others(case)

    return sizes


def _settled(options: Sequence[Option], settle: Callable[[Case], Case]) -> Callable[[Case], Case]:
    """Return `settle`, after options that have one exact value have it with small integers."""
    exact = {option.name: option.exact[0] for option in options if len(option.exact) == 1}

    def settled(case: Case) -> Case:
        if case.values == "integers":
            changed = {name: exact.get(name, value) for name, value in case.options.items()}
            case = replace(case, options=changed)
        return settle(case)

    return settled


def _continuation(names: set[str], dims: set[str]) -> str:
    if "initial_state" in names:
        return "initial_state"
    return "keys" if "S" in dims else "seqlen_offsets" if "seqlen_offsets" in names else ""


def _laws(op: Mapping[str, Any]) -> Iterator[str]:
    """The laws that hold of an op that has these fields."""
    if "wraps" in op:
        yield from _LAWS_OF_A_WRAPPER
        return
    options = {option.name for option in op["options"]}
    trained = [argument for argument in op["arguments"] if argument.differentiable]
    # Whether the op takes keys themselves, and no index counts them.
    names = {*options, *(x.name for x in op["arguments"])}
    parted = {"q", "k", "v", "causal"} <= names
    paged = "block_table" in names
    if_any = {
        "differential": True,
        "exactness": "integers" in op["recipes"],
        "causality": True,
        "splitting": op["continues_by"],
        "packing": op["packed_by"],
        "permutation": {"G", "H"} & op["dims"].keys(),
        "linearity": op["linear_in"],
        "scale_equivariance": "scale" in options,
        "layout_invariance": True,
        "context_invariance": True,
        "request_invariance": trained and (len(trained) > 1 or len(op["outputs"]) > 1),
        "determinism": True,
        "batch_invariance": paged,
        "merging": (parted or not (op["own_keys"] or paged))
        and {"lse"} == {output.name for output in op["outputs"][1:]},
        "plumbing": options,
        "untouched_inputs": True,
        "written_outputs": True,
        "rejection": True,
    }
    yield from (law for law, holds in if_any.items() if holds)
