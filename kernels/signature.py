"""The tensors and flags that the annotations of a page declare, and their checks."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self, get_args

import torch

from kernels import arguments
from kernels.op import axes, spelled_out


@dataclass(frozen=True)
class Signature:
    """The parts of a signature that calls are checked against.

    Args:
        dims: float tensor → the names of its dims.
        flags: the options that are true or false.
        modes: those that a caller may name, besides "auto".
        same_dtype: tensors of one dtype. Others may be float32 as well; `initial_state` is float32.
    """

    dims: Mapping[str, str]
    flags: tuple[str, ...]
    modes: tuple[str, ...]
    same_dtype: tuple[str, ...]

    @classmethod
    def of(cls, page: Callable[..., Any], same_dtype: Sequence[str], **more: Any) -> Self:
        """Read the annotations of a page; `more` are the fields of a subclass."""
        parameters = spelled_out(page).parameters
        dims = {name: " ".join(axes(p.annotation)) for name, p in parameters.items()}
        return cls(
            dims={n: spec for n, spec in dims.items() if spec and not n.startswith("cu_seqlens")},
            flags=tuple(n for n, p in parameters.items() if isinstance(p.default, bool)),
            modes=get_args(parameters["mode"].annotation)[1:],
            same_dtype=tuple(same_dtype),
            **more,
        )

    def check_tensors(
        self,
        given: Mapping[str, Any],
        *,
        grouped: Sequence[str] = (),
        within: torch.dtype | None = None,
    ) -> tuple[dict[str, int], torch.dtype]:
        """Check flags, shapes, dtypes and devices.

        Args:
            grouped: tensors that have G heads where the signature has H.
            within: the dtype of the operands, if it is not that of the tensors.

        Returns:
            The size of each dim, and the dtype of the operands.
        """
        arguments.check_flags(**{name: given[name] for name in self.flags})
        dims = {
            n: spec.replace("H", "G") if n in grouped else spec for n, spec in self.dims.items()
        }
        sizes = arguments.bind_dims(**{name: (given[name], spec) for name, spec in dims.items()})
        dtype = within
        if dtype is None:
            dtype = arguments.check_one_dtype(**{name: given[name] for name in self.same_dtype})
        for name in dims:
            if name == "initial_state":
                arguments.check_dtype(name, given[name], torch.float32)
            elif name not in self.same_dtype:
                arguments.check_dtype(name, given[name], torch.float32, dtype)
        return sizes, dtype
