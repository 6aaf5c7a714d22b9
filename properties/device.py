"""The device of a run: a GPU, the simulator, or Triton's interpreter."""

import gc
import locale
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any
from unittest.mock import patch
from warnings import catch_warnings

import numpy as np
import torch

from properties import HOME

DEVICES = ("auto", "cuda", "simulator", "interpreter")


def _folder() -> str:
    """The current folder; empty if it was removed."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return ""


def _popping(pop: Callable[[], object], read: Callable[[], object]) -> Callable[[Any], None]:
    """How to shorten a stack of PyTorch's to what was read before; what was taken off is gone."""

    def shorten(before: Any) -> None:
        with suppress(RuntimeError, AssertionError):
            while read() != before:
                pop()

    return shorten


def _hooks() -> Any:
    """The hooks through which autograd saves tensors."""
    return torch._C._autograd._top_saved_tensors_default_hooks(True)


_TIMERS = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)
_function_modes = torch._C._len_torch_function_stack
_dispatch_modes = torch._C._len_torch_dispatch_stack
# State of PyTorch, of the process or thread, that a call could change: how to read and write it.
_STATE: dict[str, tuple[Callable[[], Any], Callable[[Any], object]]] = {
    "default dtype": (torch.get_default_dtype, torch.set_default_dtype),
    # There was none at first, so leave none.
    "default device": (torch.get_default_device, lambda _: torch.set_default_device(None)),
    "stack of function modes": (
        _function_modes,
        _popping(torch._C._pop_torch_function_stack, _function_modes),
    ),
    "stack of dispatch modes": (
        _dispatch_modes,
        _popping(partial(torch._C._pop_torch_dispatch_stack, None), _dispatch_modes),
    ),
    "hooks of saved tensors": (
        _hooks,
        _popping(torch._C._autograd._pop_saved_tensors_default_hooks, _hooks),
    ),
    "anomaly mode": (torch.is_anomaly_enabled, torch.autograd.set_detect_anomaly),
    "grad mode": (torch.is_grad_enabled, torch.set_grad_enabled),
    "deterministic algorithms": (
        torch.are_deterministic_algorithms_enabled,
        torch.use_deterministic_algorithms,
    ),
    "float32 matmul precision": (
        torch.get_float32_matmul_precision,
        torch.set_float32_matmul_precision,
    ),
    "number of threads": (torch.get_num_threads, torch.set_num_threads),
    **{
        f"autocast on {kind}": (
            partial(torch.is_autocast_enabled, kind),
            partial(torch.set_autocast_enabled, kind),
        )
        for kind in ("cpu", "cuda")
    },
    **{
        f"choice of {kind} attention": (
            getattr(torch.backends.cuda, f"{kind}_sdp_enabled"),
            getattr(torch.backends.cuda, f"enable_{kind}_sdp"),
        )
        for kind in ("flash", "mem_efficient", "math", "cudnn")
    },
    "functorch levels": (
        torch._C._functorch.get_dynamic_layer_stack_depth,
        torch._C._functorch.pop_dynamic_layer_stack_and_undo_to_depth,
    ),
    "random seed": (torch.initial_seed, torch.manual_seed),
    # PyTorch tells nobody whether it flushes; half of the smallest normal number does.
    "flushing of denormals": (lambda: sys.float_info.min / 2 == 0, torch.set_flush_denormal),
}
# State of Python and NumPy: how to read and write it.
_OF_PYTHON: tuple[tuple[Callable[[], Any], Callable[[Any], object]], ...] = (
    (sys.getrecursionlimit, sys.setrecursionlimit),
    (sys.gettrace, sys.settrace),
    (sys.getprofile, sys.setprofile),
    (np.geterr, lambda before: np.seterr(**before)),
    (gc.isenabled, lambda before: gc.enable() if before else gc.disable()),
    (gc.get_threshold, lambda before: gc.set_threshold(*before)),
    (partial(locale.setlocale, locale.LC_ALL), partial(locale.setlocale, locale.LC_ALL)),
)


def resolve(name: str) -> str:
    """Resolve "auto": the GPU if there is one, else the simulator."""
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "simulator"
    return name


def gpus(name: str = "auto") -> list[str]:
    """The GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them; empty without a
    GPU.
    """
    if resolve(name) != "cuda":
        return []
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    count = torch.cuda.device_count()
    # CUDA ignores all names after an invalid one such as -1.
    return [str(place) for place in range(count)] if chosen is None else chosen.split(",")[:count]


def activate(name: str) -> torch.device:
    """Make Triton run on `name` in this process; return the device of the tensors.

    "auto" is the GPU if there is one, else the simulator. The interpreter replaces Triton's
    decorators, so call this before importing the kernels.

    Raises:
        ValueError: the device is unknown, or this machine or process does not have it.
    """
    if name not in DEVICES:
        raise ValueError(f"device: {name!r}, expected one of {', '.join(DEVICES)}")
    name = resolve(name)
    if name == "cuda":
        if not torch.cuda.is_available():
            raise ValueError("device: 'cuda', but torch finds no GPU; try 'simulator'")
        return torch.device("cuda")
    if name == "interpreter":
        if f"{HOME}kernels" in sys.modules and os.environ.get("TRITON_INTERPRET") != "1":
            raise ValueError("device: 'interpreter', but the kernels are imported already")
        os.environ["TRITON_INTERPRET"] = "1"
        from properties import interpreter

        interpreter.install()
    else:
        from properties import simulator

        simulator.install()
    return torch.device("cpu")


def describe(name: str) -> str:
    """Return the device and the versions that determine what a kernel computes, on one line."""
    import triton

    name = resolve(name)
    where = torch.cuda.get_device_name() if name == "cuda" else f"the {name}"
    return f"{where}, torch {torch.__version__}, triton {triton.__version__}"


@contextmanager
def as_architecture(architecture: str | None, device: torch.device) -> Iterator[None]:
    """Make kernels choose tiles as on another architecture, for tensors in the CPU's memory: ours
    by their table, others by the shared memory that the simulator reports.

    Args:
        architecture: one of `properties.architectures`; None changes nothing.
        device: where the tensors live.

    Raises:
        ValueError: the architecture is unknown, or the device is a GPU, which has its own.
    """
    if architecture is None:
        yield
        return
    from kernels import tiles
    from properties.architectures import ARCHITECTURES
    from properties.simulator import driver

    if architecture not in ARCHITECTURES:
        expected = ", ".join(ARCHITECTURES)
        raise ValueError(f"architecture: {architecture!r}, expected one of {expected}")
    if device.type != "cpu":
        raise ValueError(f"architecture: {architecture!r}, expected None on {device}, a GPU")
    claimed = ARCHITECTURES[architecture]
    with (
        patch.object(tiles, "SIMULATED", claimed.capability),
        patch.object(driver, "SHARED_MEMORY", claimed.shared_memory),
    ):
        yield


def emulated() -> bool:
    """Whether kernels run without a GPU: in the simulator or the interpreter."""
    from triton import knobs

    from properties import simulator

    return simulator.installed() or bool(knobs.runtime.interpret)


@contextmanager
def configured(position: int | None) -> Iterator[None]:
    """Make autotuned kernels run with another config than their first, where no GPU times them.

    Args:
        position: among the configs of different tiles; a list starts again after its last. None is
            the first.
    """
    from triton.runtime.autotuner import Autotuner

    from properties import simulator

    simulator.forget_timings()
    if position is None or not emulated():
        yield
        return

    prune = Autotuner.prune_configs

    def turned(tuner: Any, keywords: dict[str, Any]) -> list[Any]:
        others = {repr(config.kwargs): config for config in reversed(prune(tuner, keywords))}
        tiles = list(reversed(others.values()))
        start = position % len(tiles)
        return tiles[start:] + tiles[:start]

    with patch.object(Autotuner, "prune_configs", turned):
        yield


@contextmanager
def keeping_state() -> Iterator[list[str]]:
    """Undo what is done inside this context to PyTorch's state, to the current folder and to the
    process's timers, so that another's code does not change how later cases are judged.

    A process that is forked inside ends here, since one goes on.

    Yields:
        A list that in the end names the parts of PyTorch's state that were changed.
    """
    before = {name: read() for name, (read, _) in _STATE.items()}
    folder, process = _folder(), os.getpid()
    idle = [timer for timer in _TIMERS if not any(signal.getitimer(timer))]
    changed: list[str] = []
    try:
        yield changed
    finally:
        if os.getpid() != process:
            os._exit(0)
        for timer in idle:
            # Its signal would end the process, or raise an error elsewhere.
            signal.setitimer(timer, 0)
        for name, (read, write) in _STATE.items():
            if read() != before[name]:
                changed.append(name)
                write(before[name])
        if _folder() != folder:
            with suppress(OSError):
                os.chdir(folder)


@contextmanager
def keeping_python() -> Iterator[None]:
    """Undo what a call does inside this context to Python's warnings, recursion limit, trace and
    profile functions, collector and locale, and to NumPy's handling of errors. Changes by an import
    stay.
    """
    before = [read() for read, _ in _OF_PYTHON]
    try:
        with catch_warnings():
            yield
    finally:
        for (read, write), was in zip(_OF_PYTHON, before, strict=True):
            if read() != was:
                write(was)


@contextmanager
def calling() -> Iterator[None]:
    """Undo what a target does inside this context to the state of PyTorch and Python, so that it
    changes neither what a law computes after it nor the next call.
    """
    with keeping_state(), keeping_python():
        yield


@contextmanager
def recorded_launches() -> Iterator[list[str]]:
    """Collect the names of the Triton kernels launched inside this context, on any device."""
    from triton.runtime.interpreter import InterpretedFunction
    from triton.runtime.jit import JITFunction

    launched: list[str] = []
    originals = [(kind, kind.run) for kind in (JITFunction, InterpretedFunction)]

    def recording(original: Callable[..., Any]) -> Callable[..., Any]:
        def run(self: Any, *args: Any, **kwargs: Any) -> Any:
            launched.append(f"{self.fn.__module__}.{self.fn.__name__}")
            return original(self, *args, **kwargs)

        return run

    for kind, original in originals:
        kind.run = recording(original)
    try:
        yield launched
    finally:
        for kind, original in originals:
            kind.run = original
