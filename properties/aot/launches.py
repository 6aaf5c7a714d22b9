"""Record the launches of a function without compiling or executing them."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import torch
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, CompiledKernel, make_backend
from triton.compiler import compile as triton_compile
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from properties.architectures import Architecture
from properties.device import as_architecture


@dataclass(frozen=True)
class Launch:
    """One specialisation of a kernel, as Triton's launcher passes it to the compiler.

    Args:
        kernel: the `@triton.jit` function.
        signature: type of each parameter, including "constexpr".
        constants: values of constexpr parameters and of those specialised to 1 or None.
        attributes: known divisibility by 16 of the others.
        options: num_warps, num_stages and so on.
    """

    kernel: JITFunction[Any]
    signature: dict[str, str]
    constants: dict[tuple[int, ...], Any]
    attributes: dict[tuple[int, ...], Any]
    options: dict[str, Any]

    @property
    def name(self) -> str:
        return f"{self.kernel.module}.{self.kernel.fn.__name__}"

    def __str__(self) -> str:
        names = self.kernel.arg_names
        constants = {names[path[0]]: value for path, value in self.constants.items()}
        shown = {k: v for k, v in constants.items() if k.isupper()}
        shown |= {k: self.options[k] for k in ("num_warps", "num_stages")}
        return f"{self.name}({', '.join(f'{k}={v}' for k, v in shown.items())})"

    def compile(self, gpu: GPUTarget) -> CompiledKernel:
        source = ASTSource(self.kernel, self.signature, self.constants, self.attributes)
        return triton_compile(source, target=gpu, options=self.options)


class _Absent:
    """A driver without a GPU, sufficient for Triton's launcher to specialise."""

    def __init__(self, gpu: GPUTarget) -> None:
        self._gpu = gpu

    def get_current_target(self) -> GPUTarget:
        return self._gpu

    def get_current_device(self) -> GPUTarget:
        """Triton caches by device, so each target counts as a device."""
        return self._gpu

    def get_current_stream(self, device: GPUTarget) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")


def record(run: Callable[[], object], architecture: Architecture) -> list[Launch]:
    """Return the distinct launches of `run`, in order, on `architecture`.

    Kernels are not executed: results are whatever memory holds, so `run` must not branch on them.
    Afterwards the process has no usable GPU driver.

    Raises:
        RuntimeError: the kernels were imported under TRITON_INTERPRET, which compiles nothing.
    """
    if knobs.runtime.interpret:
        raise RuntimeError("TRITON_INTERPRET is set, expected a process that can compile kernels")
    found: dict[str, Launch] = {}
    backend = make_backend(architecture.gpu)

    def keep(*, fn: Any, compile: dict[str, Any], **_: Any) -> bool:
        data = compile["specialization_data"]
        # As in Triton's JITFunction.preload.
        options = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in json.loads(data)["options"].items()
        }
        found[data] = Launch(
            fn.jit_function,
            compile["signature"],
            compile["constants"],
            compile["configs"][0],
            backend.parse_options(options).__dict__,
        )
        return True  # Makes the launcher stop here.

    driver.set_active(_Absent(architecture.gpu))
    with (
        patch.object(knobs.runtime, "jit_cache_hook", keep),
        as_architecture(architecture.name, torch.device("cpu")),
    ):
        run()
    return list(found.values())
