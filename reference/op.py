"""An op: one signature, and two bare functions that compute it.

A page states the mathematics twice, in functions of plain tensors, and the op once, as a signature
with a docstring and without a body. The decorator `op` joins them: the op checks its arguments and
calls the first form; its attribute `second_form` does the same with the second.

The decorator also completes the docstring. Shapes and dtypes come from the annotations; the text of
arguments, results and errors that many ops share comes from the family (see `recurrence`), unless
the page says it itself.
"""

import functools
import inspect
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ParamSpec, Protocol, TypeVar, get_args, get_origin

from torch import Tensor

from reference.arguments import arrays, bind, check

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

Form = Callable[..., Any]

_WIDTH = 92
_SECTION = re.compile(r"^(Args|Returns|Raises|Source):", re.MULTILINE)
_ENTRY = re.compile(r"^    (\w+): ", re.MULTILINE)

TEXTS = {
    "q": "Queries.",
    "k": "Keys.",
    "v": "Values.",
    "scale": "Factor of `q · k`. None and -1 mean `K ** -0.5`, any other finite number itself.",
    "o": "In the dtype of q.",
}


class Op(Protocol[P, R_co]):
    """A function that the first form of its page computes."""

    __name__: str

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co: ...

    @property
    def second_form(self) -> Callable[P, R_co]:
        """The same function, computed by the second form."""

    @property
    def outputs(self) -> tuple[str, ...]:
        """The names of its results."""


def op(
    first: Form,
    second: Form,
    *,
    outputs: Sequence[str],
    run: Callable[..., Any] | None = None,
    same_dtype: Sequence[str] = (),
    texts: Mapping[str, str] = MappingProxyType({}),
    raises: Sequence[str] = (),
) -> Callable[[Callable[P, R]], Op[P, R]]:
    """Make an op of the signature below.

    Args:
        first: the definition.
        second: the same function, derived another way.
        outputs: the names of the results.
        run: `(form, sizes, **arguments)`, which calls a form and returns the results of the op;
            `sizes` has each dim that an annotation names. None means `form(**arguments)`.
        same_dtype: arguments that must have one dtype, the first of them setting it.
        texts: descriptions of arguments and results that the page does not describe.
        raises: reasons for a ValueError that the page does not give.

    Returns:
        A decorator of a signature without a body.
    """

    def decorate(page: Callable[P, R]) -> Op[P, R]:
        signature = spelled_out(page)

        def computed_by(form: Form) -> Any:
            @functools.wraps(page)
            def call(*args: P.args, **kwargs: P.kwargs) -> Any:
                given = bind(page.__name__, signature, args, kwargs).arguments
                sizes = check(signature, given, tuple(same_dtype))
                return form(**given) if run is None else run(form, sizes, **given)

            call._same_dtype = tuple(same_dtype)  # type: ignore[attr-defined]
            return call

        main, other = computed_by(first), computed_by(second)
        main.__doc__ = _completed(page, same_dtype, outputs, texts, raises)
        other.__name__ = f"{page.__name__}_{second.__name__}"
        other.__qualname__ = f"{page.__qualname__}.second_form"
        other.__doc__ = _with_arguments_of(page.__name__, second)
        main.second_form, main.outputs = other, tuple(outputs)
        return main  # type: ignore[no-any-return]

    return decorate


def spelled_out(page: Callable[..., Any]) -> inspect.Signature:
    """Return the signature of a page with its `**options: Unpack[...]` by name, and keep it there.

    A bool is False by default, others None. A tensor whose annotation has no dims is a state, and
    has the dims of the last result.
    """
    signature = inspect.signature(page)
    *parameters, last = signature.parameters.values()
    if last.kind is last.VAR_KEYWORD:
        options = get_args(last.annotation)[0].__annotations__
        *_, last_result = get_args(signature.return_annotation) or (None,)
        parameters += [
            inspect.Parameter(
                name,
                last.KEYWORD_ONLY,
                default=False if kind is bool else None,
                annotation=last_result if kind == Tensor | None else kind,
            )
            for name, kind in options.items()
        ]
        signature = signature.replace(parameters=parameters)
        page.__signature__ = signature  # type: ignore[attr-defined]
    return signature


def axes(annotation: Any) -> list[str]:
    """Return the dims of the tensor that an annotation describes, none if it describes none."""
    return arrays(annotation)[0].dim_str.split() if arrays(annotation) else []


def _with_arguments_of(name: str, second: Form) -> str | None:
    if second.__doc__ is None:
        return None
    text, source, rest = inspect.cleandoc(second.__doc__).partition("\nSource:")
    return (
        f"{text.rstrip()}\n\nArguments, results and errors are those of `{name}`.\n{source}{rest}"
    )


def _completed(
    page: Callable[..., Any],
    same_dtype: Sequence[str],
    outputs: Sequence[str],
    texts: Mapping[str, str],
    raises: Sequence[str],
) -> str | None:
    """Return the docstring of a page with everything that its signature and family say."""
    if page.__doc__ is None:
        return None
    signature = inspect.signature(page)
    head, *found = _SECTION.split(inspect.cleandoc(page.__doc__))
    sections = dict(zip(found[::2], found[1::2], strict=True))
    written = {key: _entries(sections.get(key, "")) for key in ("Args", "Returns", "Raises")}
    about = {**TEXTS, **texts, **written["Args"], **written["Returns"]}
    errors = written["Raises"]

    missing = [name for name in (*signature.parameters, *outputs) if name not in about]
    if missing:
        wanted = "expected one in its docstring or from its family"
        raise ValueError(f"{page.__name__}: no text for {', '.join(missing)}, {wanted}")

    first = next(iter(signature.parameters))
    lines = [head.rstrip(), "", "Args:"]
    for name, parameter in signature.parameters.items():
        shape = _shape(parameter.annotation)
        if name in same_dtype[1:]:
            shape += f", in the dtype of {same_dtype[0]}"
        elif _is_float(parameter.annotation) and name not in (first, *same_dtype):
            shape += ", any float dtype"
        lines.append(_entry(name, shape, about[name]))
    lines += ["", "Returns:"]
    returned = signature.return_annotation
    each = get_args(returned) if get_origin(returned) is tuple else (returned,)
    for name, annotation in zip(outputs, each, strict=True):
        lines.append(_entry(name, _shape(annotation), about[name]))
    lines += ["", "Raises:"]
    kinds = ["an argument of a wrong type or dtype"]
    if len(same_dtype) > 1:
        kinds.append(f"{', '.join(same_dtype)} not of one dtype")
    kinds += [errors["TypeError"].rstrip(".")] if "TypeError" in errors else []
    values = ["shapes that do not match"]
    values += [errors["ValueError"].rstrip(".")] if "ValueError" in errors else []
    lines.append(_entry("TypeError", "", "; ".join(kinds) + "."))
    lines.append(_entry("ValueError", "", "; ".join([*values, *raises]) + "."))
    return "\n".join([*lines, "", f"Source:{sections['Source'].rstrip()}"])


def _entries(section: str) -> dict[str, str]:
    _, *found = _ENTRY.split(section)
    return {
        name: " ".join(text.split()) for name, text in zip(found[::2], found[1::2], strict=True)
    }


def _entry(name: str, shape: str, text: str) -> str:
    words = ". ".join(part for part in (shape, text) if part)
    return textwrap.fill(
        f"{name}: {words}",
        _WIDTH,
        initial_indent=" " * 4,
        subsequent_indent=" " * 8,
    )


def _shape(annotation: Any) -> str:
    if not arrays(annotation):
        return ""
    kinds = [kind.dtype.__name__.lower() for kind in arrays(annotation)]
    shape = f"`[{', '.join(axes(annotation))}]`"
    return shape if kinds == ["float"] else f"{shape}, {' or '.join(kinds)}"


def _is_float(annotation: Any) -> bool:
    return [kind.dtype.__name__ for kind in arrays(annotation)] == ["Float"]
