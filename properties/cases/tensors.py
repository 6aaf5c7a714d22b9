"""Build the tensors of a case, and compute the outputs and gradients of a call."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from itertools import accumulate, pairwise
from typing import Any

import numpy
import torch
from torch import Tensor

from properties.cases import structures
from properties.cases.case import Case
from properties.cases.contexts import CONTEXTS, WITHOUT_GRADIENTS, checkpointed, compiled
from properties.cases.inputs import Inputs, Results
from properties.cases.layouts import relaid
from properties.cases.values import COTANGENTS, RECIPES, Blank
from properties.catalogue.kinds import is_delta
from properties.catalogue.op import Argument, Function, Op, Output, Role


def boundaries(lengths: Sequence[int]) -> list[int]:
    """`cu_seqlens` of sequences of these lengths."""
    return [0, *accumulate(lengths)]


def sizes(op: Op, case: Case) -> dict[str, int]:
    """Return the size of every letter in the declaration of `op`."""
    known = dict(case.dims)
    known["T"] = sum(case.lengths) if case.packed else case.lengths[0]
    keys = case.lengths if case.key_lengths is None else case.key_lengths
    known["S"] = sum(keys) if case.packed else keys[0]
    known["N"] = case.sequences
    sequences = case.lengths if case.packed else case.lengths[:1]
    known |= {dim: sum(count(case, t) for t in sequences) for dim, count in op.rows.items()}
    return known | op.sizes(replace(case, dims=known))


def shape(case: Case, argument: Argument, known: Mapping[str, int]) -> tuple[int, ...]:
    """Return the shape of an argument, given the size of every letter.

    A dim such as `#B` is 1 where the case broadcasts the tensor, else B.
    """
    ones = case.broadcast.get(argument.name, "")
    dims = argument.dims.split()
    return tuple(1 if d[0] == "#" and d[1:] in ones else known[d.removeprefix("#")] for d in dims)


def work(op: Op, case: Case) -> float:
    """Return how many numbers a form of the oracle may hold at once, for the longest sequence."""
    known = sizes(op, case)
    pairs = zip(case.lengths, case.key_lengths or case.lengths, strict=True)
    return case.dims["B"] * max(op.work(known | {"T": t, "S": s}) for t, s in pairs)


def largest_logit(op: Op, tensors: Mapping[str, Tensor], scale: float | None) -> float | None:
    """Return `max |scale · q kᵀ|` over all pairs of tokens; None if there are none."""
    q, k = (
        next(tensors[a.name] for a in op.arguments if a.role is role).detach().double()
        for role in (Role.QUERY, Role.KEY)
    )
    if not q.numel() or not k.numel():
        return None
    k = k.repeat_interleave(q.shape[2] // k.shape[2], 2)
    factor = q.shape[-1] ** -0.5 if scale is None or scale == -1 else abs(scale)
    return factor * float((q.transpose(1, 2) @ k.permute(0, 2, 3, 1)).abs().max())


def present(op: Op, case: Case) -> list[Argument]:
    """Return the arguments for which a case has a tensor of its own."""
    return [
        a
        for a in op.arguments
        if (not a.optional or a.name in case.given) and a.name not in case.same
    ]


def trained(op: Op, case: Case) -> tuple[str, ...]:
    """Return the tensors that need a gradient in a case."""
    return tuple(
        a.name for a in present(op, case) if a.differentiable and a.name not in case.frozen
    )


def differentiable_outputs(op: Op, case: Case) -> list[Output]:
    """Return the requested outputs that gradients flow through."""
    return [
        output
        for output in op.outputs
        if output.differentiable and (output.asked_by is None or case.options.get(output.asked_by))
    ]


def build(op: Op, case: Case, device: torch.device | str = "cpu") -> Inputs:
    """Build the tensors and options of a case, bit for bit the same on every machine."""
    generator = torch.Generator().manual_seed(case.seed)
    known = sizes(op, case)
    # Either integer width is allowed; the seed decides.
    index = torch.int32 if case.seed >> 8 & 1 else torch.int64
    tensors = {
        a.name: _filled(op, case, a, _dtype(case, a, index), known, generator).to(device)
        for a in op.arguments
        if not a.optional or a.name in case.given
    }
    amended = op.amend(case, known, tensors)
    tensors = {n: relaid(x, case.layout_of(n)) for n, x in amended.items() if n not in case.same}
    lists = {n: v for n, v in case.options.items() if isinstance(v, (list, tuple))}
    if case.packed:
        # Without lengths of their own, keys have no boundaries of their own.
        each = zip(op.packed_by, (case.lengths, case.key_lengths), strict=False)
        lists |= {name: boundaries(lengths) for name, lengths in each if lengths is not None}
    for name, numbers in lists.items():
        x = torch.tensor(numbers, dtype=index, device=device)
        tensors[name] = relaid(x, case.layout_of(name))
    options = {n: _number(case, v) for n, v in case.options.items() if n not in tensors}
    if "structure" in options:
        options["structure"] = structures.build(case, device)
    return Inputs(tensors, options, case.same, trained(op, case))


def _dtype(case: Case, argument: Argument, index: torch.dtype) -> torch.dtype:
    match argument.dtype:
        case "index":
            return index
        case "bool":
            return torch.bool
        case "either" if argument.name in case.float32:
            return torch.float32
        case "case" | "either":
            return case.torch_dtype
        case _:
            return torch.float32


def on_integers(op: Op, case: Case) -> Case:
    """Return the case with small integers for values, so that no sum or product rounds.

    Options are exact. No token is repeated, as its sums grow with the length.
    """
    exact = {o.name: o.exact[case.seed % len(o.exact)] for o in op.options if o.exact}
    options = {**case.options, **{n: v for n, v in exact.items() if n in case.options}}
    layout = "contiguous" if case.layout == "repeated" else case.layout
    layouts = {n: one for n, one in case.layouts.items() if one != "repeated"}
    exact_case = replace(case, values="integers", options=options, layout=layout, layouts=layouts)
    return op.settle(exact_case)


def _thinned(gradient: Tensor) -> Tensor:
    """Keep at most 16 value dims of a cotangent and set the others to 0.

    The gradient of k_i · k_j sums over tokens and value dims. With 128 dims it reached 337, which
    does not fit into the 8 bits of bfloat16's mantissa, and a 16-bit product may round.
    """
    dims = torch.arange(gradient.shape[-1], device=gradient.device)
    return gradient * (dims % -(-max(len(dims), 1) // 16) == 0)


def _number(case: Case, value: Any) -> Any:
    return numpy.float64(value) if case.numbers == "numpy" and type(value) is float else value


def _filled(
    op: Op,
    case: Case,
    argument: Argument,
    dtype: torch.dtype,
    known: Mapping[str, int],
    generator: torch.Generator,
) -> Tensor:
    if argument.fill is not None:
        return argument.fill(case, known, generator).to(dtype)
    dims = argument.dims.split()
    axis = next((i for i, d in enumerate(dims) if d in ("T", "S")), None)
    lengths = case.key_lengths if axis is not None and dims[axis] == "S" else case.lengths
    bounds = boundaries(lengths or case.lengths)
    spans = list(pairwise(bounds if case.packed else bounds[:2]))
    any_size = argument.name in op.of_any_size(case)
    blank = Blank(argument.role, shape(case, argument, known), axis, spans, dtype, any_size)
    x = RECIPES[case.values](blank, generator)
    # One tensor may be keys and values.
    roles = {a.role for a in op.arguments if case.same.get(a.name, a.name) == argument.name}
    if op.nonnegative(case) and roles & {Role.QUERY, Role.KEY}:
        x = x.abs()
    elif op.nonnegative(case) and argument.role is Role.STATE:
        x[..., -1].abs_()
    return x.to(dtype)


def cotangents(op: Op, case: Case, device: torch.device | str = "cpu") -> Results:
    """Return a cotangent for each output that gets one, by the output's name.

    Empty if the call is without gradients or no tensor needs one.
    """
    generator = torch.Generator().manual_seed(case.seed + 1)
    known = sizes(op, case)
    made: Results = {}
    if case.context in WITHOUT_GRADIENTS or not trained(op, case):
        return made
    for output in differentiable_outputs(op, case):
        shape = tuple(known[d] for d in output.dims.split())
        blank = Blank(Role.VALUE, shape, None, (), case.torch_dtype, any_size=True)
        recipe = case.values if case.values in ("integers", "wide_range") else "gaussian"
        x = RECIPES[recipe](blank, generator)
        if recipe != "integers":
            x = COTANGENTS[case.cotangents](x, case.torch_dtype, generator)
        elif is_delta(op):
            x = _thinned(x)
        if output.name in case.silent:
            continue
        dtype = output.dtype_in(case)
        name = f"d{output.name}"
        layout = "contiguous" if output.asked_by and name not in case.layouts else None
        made[output.name] = relaid(x.to(dtype).to(device), layout or case.layout_of(name))
    return made


def own_copy(x: Tensor) -> Tensor:
    """Copy `x` into memory of its own with the same strides and history, so that it can be written
    to.
    """
    memory = torch.empty(0, dtype=x.dtype, device=x.device).set_(x.untyped_storage().clone())
    return memory.as_strided(x.shape, x.stride(), x.storage_offset()).copy_(x)


def outputs_and_gradients(
    op: Op,
    function: Function,
    inputs: Inputs,
    gradients_of: Results | None = None,
    *,
    context: str = "grad",
    earlier: Mapping[str, Any] | None = None,
    **extra: Any,
) -> Results:
    """Call `function`; return its outputs by name, and the gradient of x as "dx".

    Args:
        gradients_of: cotangents by output; if empty, only the forward pass runs.
        context: the context of the forward pass, see `properties.cases.contexts`.
        earlier: options of a call before this one on the same tensor objects, which then hold other
            numbers; None for no such call. Another call on other numbers then comes before the
            backward pass as well.
        extra: arguments of this implementation alone: `mode` and `tile`.
    """
    tensors = dict(inputs.tensors)
    names = [name for name in inputs.trained if name in tensors]
    if gradients_of or context in WITHOUT_GRADIENTS:
        for name in names:
            tensors[name] = tensors[name].detach().requires_grad_()
    given = inputs.given(tensors)
    if earlier is not None:
        _call_before(function, given, earlier, context, extra)
    if inputs.options.get("inplace"):
        name = op.arguments[0].name
        given[name] = own_copy(tensors[name])
    if context == "compiled":
        function = compiled(function)
    # A call that writes to its input cannot be run again.
    if context == "checkpointed" and not inputs.options.get("inplace"):
        function = checkpointed(function)
    with CONTEXTS[context](_device_type(inputs)), telling(op, {**given, **extra}):
        named = _named(op, function(**given, **extra), given)
    if not gradients_of:
        return {name: y.detach() for name, y in named.items()}
    if earlier is not None:
        _call_between(function, given, context, extra)
    # An output without history contributes no gradient: its inputs' gradients count as zero. Nor
    # does one of a wrong shape, which is wrong whether or not gradients are asked for.
    wanted = [
        n
        for n, y in named.items()
        if n in gradients_of and y.requires_grad and y.shape == gradients_of[n].shape
    ]
    gradients: Sequence[Tensor | None] = [None] * len(names)
    if wanted:
        backwards = partial(
            torch.autograd.grad,
            [named[n] for n in wanted],
            [tensors[n] for n in names],
            allow_unused=True,
        )
        incoming = [gradients_of[n].to(named[n].dtype) for n in wanted]
        with telling(op, {**given, **extra}, "backwards through "):
            if context == "backward_twice":
                backwards([-2 * dy for dy in incoming], retain_graph=True)
            gradients = backwards(incoming)
    results = {name: y.detach() for name, y in named.items()}
    for name, gradient in zip(names, gradients, strict=True):
        # A gradient of None counts as zero.
        results[f"d{name}"] = torch.zeros_like(tensors[name]) if gradient is None else gradient
    return results


@contextmanager
def telling(op: Op, given: Mapping[str, Any], way: str = "") -> Iterator[None]:
    """Add the arguments of the call to an error, since a law may change those of its case.

    For nested calls the note describes the innermost.
    """
    try:
        yield
    except BaseException as error:
        if not getattr(error, "__notes__", ()):
            described = (f"{name}={_described(value)}" for name, value in given.items())
            error.add_note(f"{way}{op.name}({', '.join(described)})")
        raise


def _described(value: object) -> str:
    if not isinstance(value, Tensor):
        return repr(value)
    dtype = str(value.dtype).removeprefix("torch.")
    few = value.ndim == 1 and not value.is_floating_point() and len(value) <= 16
    return f"{dtype}{value.tolist() if few else list(value.shape)}"


def _device_type(inputs: Inputs) -> str:
    return next(iter(inputs.tensors.values())).device.type


def _call_before(
    function: Function,
    given: Mapping[str, Any],
    options: Mapping[str, Any],
    context: str,
    extra: Mapping[str, Any],
) -> None:
    """Call the function with other numbers in all its tensors and other option values.

    The function may reject this call, since the options need not suit the tensors.
    """
    tensors = {id(x): _own_elements(x) for x in given.values() if isinstance(x, Tensor)}
    others = {key: _other(x) for key, x in tensors.items()}
    for value in given.values():
        if isinstance(value, dict):
            rules = {id(x): (name, x) for name, x in value.items() if isinstance(x, Tensor)}
            tensors |= {key: _own_elements(x) for key, (_, x) in rules.items()}
            others |= {key: structures.changed(n, tensors[key]) for key, (n, _) in rules.items()}
    before = {key: x.detach().clone() for key, x in tensors.items()}
    with torch.no_grad():
        for key, x in tensors.items():
            x.copy_(others[key])
    inplace = {"inplace": False} if "inplace" in given else {}
    device = next(x.device for x in given.values() if isinstance(x, Tensor))
    lists = {
        name: torch.tensor(value, device=device)
        for name, value in options.items()
        if isinstance(value, (list, tuple))
    }
    try:
        with CONTEXTS[context](device.type):
            function(**{**given, **options, **lists, **inplace}, **extra)
    except (ValueError, TypeError):
        pass
    finally:
        with torch.no_grad():
            for key, x in tensors.items():
                x.copy_(before[key])


def _call_between(
    function: Function, given: Mapping[str, Any], context: str, extra: Mapping[str, Any]
) -> None:
    """Call the function with other numbers in other tensors, as the next layer of a model does.

    The function may reject this call, as the options need not suit the numbers.
    """
    others = {
        name: _turned(x.detach()).requires_grad_(x.requires_grad)
        for name, x in given.items()
        if isinstance(x, Tensor)
    }
    device = next(x.device for x in others.values())
    with suppress(ValueError, TypeError), CONTEXTS[context](device.type):
        function(
            **{**given, **others, **({"inplace": False} if "inplace" in given else {})}, **extra
        )


def _own_elements(x: Tensor) -> Tensor:
    """The view of a tensor that has each of its addresses once."""
    x = x.detach()
    for axis, stride in enumerate(x.stride()):
        if not stride and x.shape[axis] > 1:
            x = x.narrow(axis, 0, 1)
    return x


def _other(x: Tensor) -> Tensor:
    """Other numbers of the same kind: in reverse order, or half of each where that changes none."""
    turned = _turned(x)
    same = x.is_floating_point() and torch.equal(turned.nan_to_num(), x.nan_to_num())
    return x / 2 if same else turned


def _turned(x: Tensor) -> Tensor:
    """Permute the numbers: rows in reverse order, sequence lengths too."""
    if x.is_floating_point() or not len(x):
        return x.flip(tuple(range(max(x.dim() - 1, 1))))
    bounds = x.dim() == 1 and bool(x[0] == 0) and bool((x.diff() >= 0).all())
    return x[-1] - x.flip(0) if bounds else x.flip(0)


def transformable(op: Op, function: Function, inputs: Inputs, gradients_of: Results) -> Results:
    """Do what `outputs_and_gradients` does in a way that `torch.func.vmap` accepts.

    `function` must consist of PyTorch operations only.
    """
    written = op.arguments[0].name

    def call(tensors: Results) -> Results:
        given = inputs.given({**inputs.tensors, **tensors})
        if inputs.options.get("inplace"):
            given[written] = given[written].clone()
        return _named(op, function(**given), given)

    if not gradients_of:
        return call({})
    named, pull, *_ = torch.func.vjp(call, {n: inputs.tensors[n] for n in inputs.trained})
    (gradients,) = pull(
        {n: gradients_of[n] if n in gradients_of else torch.zeros_like(y) for n, y in named.items()}
    )
    return {**named, **{f"d{name}": gradient for name, gradient in gradients.items()}}


def _named(op: Op, returned: Any, given: Mapping[str, Any]) -> Results:
    outputs = returned if isinstance(returned, tuple) else (returned,)
    # A target without an optional result may return None in its place.
    if any(y is not None for y in outputs[len(op.outputs) :]):
        names = ", ".join(output.name for output in op.outputs)
        raise TypeError(f"it returns {len(outputs)} results, expected {names} alone")
    named = {o.name: y for o, y in zip(op.outputs, outputs, strict=False) if y is not None}
    promised = [o.name for o in op.outputs if o.asked_by is None or given.get(o.asked_by)]
    device = next(x.device for x in given.values() if isinstance(x, Tensor))
    if missing := [name for name in promised if name not in named]:
        raise TypeError(f"it returns no {' and no '.join(missing)}, expected {', '.join(promised)}")
    for name, y in named.items():
        if not isinstance(y, Tensor):
            raise TypeError(f"it returns {name} as {type(y).__name__}, expected a tensor")
        if not y.is_floating_point() or y.is_nested or y.layout != torch.strided:
            kind = "nested" if y.is_nested else f"{y.dtype} {y.layout}".replace("torch.", "")
            raise TypeError(f"it returns {name} as a tensor that is {kind}, expected dense floats")
        if y.device != device:
            raise TypeError(f"it returns {name} on {y.device}, expected {device}")
    return named
