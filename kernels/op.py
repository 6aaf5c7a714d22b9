"""The public function of a page: its arguments by name, and a docstring of shapes and limits.

A page has the signature of its namesake in `reference`, with `mode` and `tile`, which families have
among their options, and no body. Its docstring names the spec and says what is special; the
decorator adds what the annotations and the family say. The spec has the equation and the meaning of
each argument.
"""

import functools
import inspect
import textwrap
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ParamSpec, TypedDict, TypeVar, get_args, get_origin

from jaxtyping import AbstractArray, Int
from torch import Tensor

from kernels.arguments import check_tensors

P = ParamSpec("P")
R = TypeVar("R")

_WIDTH = 92
# How Triton begins to say that there is no GPU.
_NO_DRIVER = "0 active drivers"
_ON_A_CPU = (
    "Triton has no driver: expected a GPU and tensors on it, or a simulated one, as "
    "`python -m properties.simulator SCRIPT` has it"
)


class TileOption(TypedDict, total=False):
    """The last option of every family."""

    tile: int | None


def op(
    run: Callable[..., Any],
    *,
    outputs: Sequence[str],
    about: str = "",
    same_dtype: Sequence[str] = (),
    texts: Mapping[str, str] = MappingProxyType({}),
    raises: Sequence[str] = (),
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Make a public function of the signature below.

    Args:
        run: takes every argument of the signature by its name, and returns the results.
        outputs: the names of the results.
        about: a paragraph on the family, for the docstring.
        same_dtype: tensors that have one dtype, the first of them setting it; none for the first
            argument alone.
        texts: descriptions of single arguments and results, for the docstring.
        raises: reasons for a ValueError besides shapes, devices, modes and tiles.

    Returns:
        A decorator of a signature without a body.
    """

    def decorate(page: Callable[P, R]) -> Callable[P, R]:
        parameters = spelled_out(page).parameters
        names = tuple(parameters)
        defaults = {n: p.default for n, p in parameters.items() if p.default is not p.empty}
        required = [n for n, p in parameters.items() if n not in defaults and axes(p.annotation)]

        @functools.wraps(page)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            page(*args, **kwargs)  # Python refuses a call that does not fit the signature.
            for name in kwargs:
                if name not in names:
                    raise TypeError(
                        f"{page.__name__}() got an unexpected keyword argument {name!r}"
                    )
            given = {**defaults, **dict(zip(names, args, strict=False)), **kwargs}
            check_tensors(**{name: given[name] for name in required})
            try:
                result: R = run(**given)
            except RuntimeError as error:
                if _NO_DRIVER in str(error):
                    raise RuntimeError(_ON_A_CPU) from error
                raise
            return result

        # torch's compiler counts its recompilations by code object: each op needs its own.
        call.__code__ = call.__code__.replace(co_name=page.__name__)
        call.__doc__ = _completed(page, outputs, about, same_dtype, texts, raises)
        return call

    return decorate


def spelled_out(page: Callable[..., Any]) -> inspect.Signature:
    """Return the signature of a page with its `**options: Unpack[...]` by name, and keep it there.

    Options come before `mode`, and `tile`, the last of them, after it. A bool is False by default,
    others None. A tensor whose annotation has no dims is a state, and has the dims of the last
    result.
    """
    signature = inspect.signature(page)
    *parameters, last = signature.parameters.values()
    if last.kind is last.VAR_KEYWORD:
        options = get_args(last.annotation)[0].__annotations__
        *_, last_result = get_args(signature.return_annotation) or (None,)
        *before, tile = [
            inspect.Parameter(
                name,
                last.KEYWORD_ONLY,
                default=False if kind is bool else None,
                annotation=last_result if kind == Tensor | None else kind,
            )
            for name, kind in options.items()
        ]
        parameters[-1:] = [*before, parameters[-1], tile]
        signature = signature.replace(parameters=parameters)
        page.__signature__ = signature
    return signature


def axes(annotation: Any) -> list[str]:
    """Return the dims of the tensor that an annotation describes, none if it describes none."""
    array = _array(annotation)
    return array.dim_str.split() if array is not None else []


def _array(annotation: Any) -> Any:
    """Return the first jaxtyping array of an annotation, or None."""
    kinds = get_args(annotation) or (annotation,)
    arrays = (kind for kind in kinds if isinstance(kind, type) and issubclass(kind, AbstractArray))
    return next(arrays, None)


def _completed(
    page: Callable[..., Any],
    outputs: Sequence[str],
    about: str,
    same_dtype: Sequence[str],
    texts: Mapping[str, str],
    raises: Sequence[str],
) -> str:
    """Complete the docstring of a page by its signature and by the texts of its family."""
    signature = inspect.signature(page)
    modes = [f"`{mode}`" for mode in get_args(signature.parameters["mode"].annotation)[1:]]
    texts = {
        "mode": f"{' or '.join(modes)}, or `auto` for a choice.",
        "tile": f'Index into `kernels.tiles.TABLE["{page.__name__}", mode]`; None chooses by head '
        "dim, dtype and device.",
        **texts,
    }
    same_dtype = same_dtype or [next(iter(signature.parameters))]
    spec = f"`help(reference.{page.__name__})` has the equation and explains the arguments."
    head = inspect.cleandoc(page.__doc__ or "")
    about = f"{about} Tensors may have any strides.".lstrip()
    lines = [head, "", spec, "", *textwrap.wrap(about, _WIDTH), "", "Args:"]
    options = []
    for name, parameter in signature.parameters.items():
        if shape := _shape(parameter.annotation):
            text = texts.get(name, _dtype(name, parameter.annotation, same_dtype))
            lines.append(_entry(name, f"{shape}, {text}"))
        elif name not in texts:
            options.append(name)
    if options:
        lines.append(_entry(", ".join(options), f"As in `reference.{page.__name__}`."))
    lines += [_entry(name, texts[name]) for name in ("mode", "tile")]
    lines += ["", "Returns:"]
    returned = signature.return_annotation
    each = get_args(returned) if get_origin(returned) is tuple else (returned,)
    for name, annotation in zip(outputs, each, strict=True):
        text = texts.get(name, f"in the dtype of {same_dtype[0]}.")
        lines.append(_entry(name, f"{_shape(annotation)}, {text}"))
    kinds = ["an argument of a wrong type or dtype"]
    if len(same_dtype) > 1:
        kinds.append(f"{', '.join(same_dtype)} not of one dtype")
    values = ["shapes or devices that do not match", *raises, "an unknown mode or tile"]
    return "\n".join(
        [
            *lines,
            "",
            "Raises:",
            _entry("TypeError", f"{'; '.join(kinds)}."),
            _entry("ValueError", f"{'; '.join(values)}."),
            _entry(
                "NotImplementedError",
                texts.get("NotImplementedError", "a gradient of a kernel's gradient."),
            ),
        ]
    )


def _dtype(name: str, annotation: Any, same_dtype: Sequence[str]) -> str:
    first, *others = same_dtype
    if _array(annotation).dtype is Int:
        return "int32 or int64."
    if name == first:
        return "float32, bfloat16 or float16."
    return f"in the dtype of {first}{'' if name in others else ' or float32'}."


def _shape(annotation: Any) -> str:
    return f"`[{', '.join(axes(annotation))}]`" if axes(annotation) else ""


def _entry(name: str, text: str) -> str:
    return textwrap.fill(
        f"{name}: {text}", _WIDTH, initial_indent=" " * 4, subsequent_indent=" " * 8
    )
