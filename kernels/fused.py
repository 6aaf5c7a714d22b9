"""The public functions of ops of one small kernel: gates, norms, feature maps, sums over tokens."""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ParamSpec, TypeVar

from kernels import arguments, tiles
from kernels.modes import check_mode
from kernels.op import op, spelled_out
from kernels.signature import Signature

P = ParamSpec("P")
R = TypeVar("R")


def fused(
    run: Callable[..., Any],
    *,
    output: str = "y",
    about: str = "",
    widest: int | None = None,
    wraps: str | None = None,
    same_dtype: Sequence[str] = (),
    texts: Mapping[str, str] = MappingProxyType({}),
    raises: Sequence[str] = (),
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Make a public function of the signature below, and check calls against its annotations.

    Tensors outside `same_dtype` may be float32 as well.

    Args:
        run: takes every argument but `mode` by its name, checked: `tile` is an index into
            `kernels.tiles.TABLE`.
        output: the name of the result.
        widest: the largest D, the last dim of the first argument; None for any, where tiles do not
            depend on it.
        wraps: the op whose kernels and tiles it uses; None for its own.
        about, same_dtype, texts, raises: see `kernels.op.op`.

    Returns:
        A decorator of a signature without a body.
    """

    def decorate(page: Callable[P, R]) -> Callable[P, R]:
        parameters = spelled_out(page).parameters
        first = next(iter(parameters))
        alike = tuple(same_dtype) or (first,)
        signature = Signature.of(page, alike)
        owner = wraps or page.__name__

        def checked(*, mode: str, **given: Any) -> Any:
            sizes, dtype = signature.check_tensors(given)
            if widest is not None:
                arguments.check_range(f"D (the last dim of {first})", sizes["D"], 1, widest)
            device = given[first].device
            if "cu_seqlens" in given:
                given["cu_seqlens"] = arguments.check_cu_seqlens(
                    "cu_seqlens", given["cu_seqlens"], sizes["B"], device
                )
            check_mode(mode, "fused")
            dim = 1 if widest is None else sizes["D"]
            given["tile"] = tiles.choose(
                owner, "fused", dim=dim, dtype=dtype, device=device, tile=given["tile"]
            )
            return run(**given)

        of_tile = f'Index into `kernels.tiles.TABLE["{owner}", "fused"]`; None chooses.'
        limit = "" if widest is None else f"D is 1 to {widest}. "
        limits = [] if widest is None else [f"D outside 1 to {widest}"]
        boundaries = [arguments.BAD_BOUNDARIES] if "cu_seqlens" in parameters else []
        return op(
            checked,
            outputs=(output,),
            about=f"Differentiable once. Sums are float32. {limit}{about}".rstrip(),
            same_dtype=alike,
            texts={
                output: f"in the dtype of {first}, contiguous.",
                **({} if wraps is None else {"tile": of_tile}),
                **texts,
            },
            raises=[*limits, *raises, *boundaries],
        )(page)

    return decorate
