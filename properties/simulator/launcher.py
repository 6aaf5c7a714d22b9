"""Launches in place of a GPU's.

`JITFunction.run`, heuristics, specialisation and tuple arguments stay Triton's. The driver, the
compile step and the timing of autotuned configs are replaced.
"""

from __future__ import annotations

import ast
import ctypes
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from functools import cache, partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import triton.language as tl
from triton.compiler import compiler
from triton.compiler.errors import CompileTimeAssertionFailure
from triton.runtime import autotuner, driver, jit

from . import compilation
from .compilation import Program, SimulatedTarget
from .driver import DEVICE, Driver, answers
from .errors import GridTooLarge, Location
from .frontend import Type
from .memory import ELEMENT_OF, FRESH, Buffer, Pointer, Traffic, allocators
from .numerics import ELEMENTS, Array
from .options import Options
from .runtime import Slab

SLAB_ELEMENTS = 2**16
# Along the first axis of a grid.
MOST_PROGRAMS = 2**31 - 1
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
START = np.zeros(1, np.int64)
START.setflags(write=False)
# Options of Triton's compiler for AMD alone, which say how fast a kernel is and not what it does.
AMD_ONLY = ("waves_per_eu", "matrix_instr_nonkdim", "kpack", "schedule_hint", "allow_flush_denorm")
# Programs that were launched since somebody last cleared this.
LAUNCHED: set[Program] = set()


Leaf = tuple[tuple[int, ...], str]


def leaves(signature: Any, path: tuple[int, ...], name: str) -> Iterator[Leaf]:
    """Path and name of every runtime argument of the kernel."""
    if isinstance(signature, (tuple, list)):
        for index, part in enumerate(signature):
            yield from leaves(part, (*path, index), f"{name}[{index}]")
    elif signature != "constexpr":
        yield path, name


class Kernel:
    """A compiled kernel, as `JITFunction.run` expects to find it."""

    function = None
    packed_metadata = ()
    n_regs = n_spills = 0
    n_max_threads = 1024

    def __init__(self, source: Any, program: Program, options: dict[str, Any]) -> None:
        self.src, self.program, self.name = source, program, source.name
        self.hash = source.fn.cache_key
        self.asm = {"python": program.source}
        about = {"name": self.name, "shared": 0, "target": DEVICE}
        self.metadata = SimpleNamespace(**{**options, **about})
        signature = source.signature.items()
        self.paths = [
            leaf
            for index, (name, kind) in enumerate(signature)
            for leaf in leaves(kind, (index,), name)
        ]
        self.shown = False

    def launch_metadata(self, grid: Any, stream: Any, *arguments: Any) -> Any:
        return compiler.LazyDict({"name": self.name, "function": None, "stream": stream})

    def _init_handles(self) -> None:
        """There is nothing to load."""

    def run(self, x: int, y: int, z: int, *rest: Any) -> None:
        """Called by Triton with the grid, six handles of its own, and the kernel's arguments."""
        _, _, _, metadata, enter, leave = rest[:6]
        if enter is not None:
            enter(metadata)
        simulate(self, (int(x), int(y), int(z)), rest[6:])
        if leave is not None:
            leave(metadata)

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        x, y, z = (*grid, 1, 1)[:3]

        def launch(*arguments: Any, **_: Any) -> None:
            simulate(self, (x, y, z), arguments)

        return launch


def bind(kernel: Kernel, arguments: tuple[Any, ...]) -> list[Pointer | Array]:
    """Arguments as the generated code takes them."""
    kinds = kernel.program.arguments
    bound: list[Pointer | Array] = []
    for path, name in kernel.paths:
        value = arguments[path[0]]
        for index in path[1:]:
            value = value[index]
        values = [value] if not hasattr(value, "block_shape") else descriptor(value, kinds, bound)
        for part, kind in zip(values, kinds[len(bound) :], strict=False):
            if kind.is_pointer:
                bound.append((as_buffer(kernel, name, part, kind), START))
            else:
                bound.append(np.array([part]).astype(ELEMENTS[kind.element].value))
    if len(bound) != len(kinds):
        raise NotImplementedError(
            f"kernel {kernel.name} takes {len(kinds)} arguments in its IR, not {len(bound)}"
        )
    return bound


def descriptor(value: Any, kinds: tuple[Type, ...], bound: list[Pointer | Array]) -> list[Any]:
    """A host tensor descriptor as the arguments that stand for it in the IR."""
    rank = len(value.shape)
    flags = [value.padding == "nan", getattr(value, "round_f32_to_tf32", False)]
    start = len(bound) + 1 + 2 * rank
    while len(flags) and kinds[start + len(flags) - 1].element != "i1":
        flags.pop()
    geometry = [*value.shape, *value.strides]
    return [value.base, *geometry, *flags, *geometry]


def as_buffer(kernel: Kernel, name: str, value: Any, kind: Type) -> Buffer:
    tensor = getattr(value, "base", value) if not isinstance(value, torch.Tensor) else value
    if not isinstance(tensor, torch.Tensor) or tensor.device.type != "cpu":
        what = tensor.device if isinstance(tensor, torch.Tensor) else type(tensor).__name__
        raise TypeError(
            f"argument `{name}` of kernel {kernel.name} is on {what}, "
            "the simulator takes CPU tensors"
        )
    if ELEMENTS[kind.pointee].size == tensor.element_size():
        return Buffer(name, tensor, kind.pointee)
    return Buffer(name, tensor, ELEMENT_OF[tensor.dtype]).cast(kind.pointee)


def storages(buffers: list[Buffer | None], positions: list[int]) -> set[int]:
    return {b.storage for i in positions if (b := buffers[i]) is not None}


def watch(buffers: list[Buffer | None], written: set[int], read: set[int]) -> None:
    """Track reads and writes of the storages that this launch may write."""
    traffics: dict[tuple[int, int], Traffic] = {}
    for buffer in buffers:
        if buffer is None or buffer.storage not in written:
            continue
        storage, itemsize = key = (buffer.storage, buffer.element.size)
        if key not in traffics:
            nbytes = buffer.tensor.untyped_storage().nbytes()
            traffics[key] = Traffic(storage, nbytes, itemsize, storage in read)
        buffer.watch(traffics[key])


def slabs(count: int, size: int, options: Options) -> Iterator[Array]:
    """Linear program indices, a slab at a time."""
    programs = np.arange(count)
    if options.order == "reverse":
        programs = programs[::-1]
    elif options.order == "shuffled":
        programs = np.random.default_rng(options.seed).permutation(count)
    for start in range(0, count, size):
        yield programs[start : start + size]


def refuse_too_large(kernel: Kernel, grid: tuple[int, int, int], limit: int) -> None:
    """Refuse a grid with more programs along an axis than CUDA takes."""
    for axis, (programs, most) in enumerate(zip(grid, (MOST_PROGRAMS, limit, limit), strict=True)):
        if programs > most:
            function = kernel.src.fn
            lines = [line.lstrip().startswith("def ") for line in function.raw_src]
            line = function.starting_line_number + lines.index(True)
            place = Location(function.fn.__code__.co_filename, line)
            told = f"grid {grid} has {programs} programs along axis {axis}"
            raise GridTooLarge(kernel.name, place, f"{told}, expected {most} at most")


def simulate(kernel: Kernel, grid: tuple[int, int, int], arguments: tuple[Any, ...]) -> None:
    options, program = SESSION.options, kernel.program
    LAUNCHED.add(program)
    if options.dump and not kernel.shown:
        kernel.shown = True
        print(program.source)
    count = grid[0] * grid[1] * grid[2]
    if count == 0:
        return
    refuse_too_large(kernel, grid, options.grid_limit)
    bound = bind(kernel, arguments)
    buffers = [item[0] if isinstance(item, tuple) else None for item in bound]
    written, read = (storages(buffers, of) for of in (program.written, program.read))
    SESSION.updates |= not written.isdisjoint(read | storages(buffers, program.updated))
    tensors = tuple(buffer for buffer in buffers if buffer is not None)
    for buffer in tensors:
        if not options.checks or (options.unwritten == "nan" and "f" in buffer.kind):
            buffer.fresh = None
    if options.checks and count > 1 and not program.synchronises:
        watch(buffers, written, read)
    size = options.slab or max(1, SLAB_ELEMENTS // program.tile)
    if program.sequential:
        size = 1
    with np.errstate(all="ignore"):
        for programs in slabs(count, min(size, count), options):
            slab = Slab(kernel.name, grid, programs, options, tensors, program.tile)
            program.entry(slab, *bound)


def compile_simulated(
    original: Callable[..., Any], source: Any, target: Any = None, options: Any = None, **rest: Any
) -> Any:
    """The compile step of `JITFunction`; compilations for a real device pass through."""
    if not isinstance(target, SimulatedTarget):
        return original(source, target=target, options=options, **rest)
    settings = dict(options or {})
    return Kernel(source, compilation.program_of(source, settings), settings)


def for_nvidia(self: Any, keywords: dict[str, Any]) -> dict[str, Any]:
    """The arguments and options of a launch that Triton's compiler for NVIDIA knows."""
    return {
        name: x for name, x in keywords.items() if name in self.arg_names or name not in AMD_ONLY
    }


def choose_configs(tuner: Any, options: Options, keywords: dict[str, Any]) -> list[Any]:
    """The config that an autotuned kernel runs with, and those to try if it does not compile."""
    configs = tuner.configs
    if len(configs) > 1:
        configs = list(tuner.prune_configs(keywords))
    if callable(options.autotune_config):
        return [options.autotune_config(configs)]
    start = min(options.autotune_config, len(configs) - 1)
    return [*configs[start:], *configs[:start]]


def run_autotuned(self: Any, *args: Any, **kwargs: Any) -> Any:
    """In place of `Autotuner.run`: run one config without timing.

    Triton times several configs by running them on the arguments of the first call with a key. A
    kernel that updates its arguments runs twice in that call, so that it shows if nobody resets or
    restores them in between. In later calls nobody does. Triton leaves out configs whose
    `tl.static_assert` does not hold.
    """
    self.nargs = dict(zip(self.arg_names, args, strict=False))
    *configs, last = choose_configs(self, SESSION.options, kwargs)
    for config in configs:
        with suppress(CompileTimeAssertionFailure):
            return run_config(self, config, args, kwargs)
    return run_config(self, last, args, kwargs)


def run_config(tuner: Any, config: Any, args: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """Run an autotuned kernel with one of its configs."""
    tuner.best_config = config
    chosen = {**keywords, **config.all_kwargs()}
    given = {**tuner.nargs, **chosen}

    def run(*hooks: Callable[[dict[str, Any]], Any] | None) -> Any:
        for hook in (*hooks, config.pre_hook):
            if hook is not None:
                hook(given)
        SESSION.updates = False
        return tuner.fn.run(*args, **chosen)

    timed = (tuner, *tuning_key(tuner, {**tuner.nargs, **keywords}))
    if len(tuner.configs) == 1 or timed in SESSION.timed:
        result = run()
    else:
        result = run(tuner.pre_hook)
        SESSION.timed.add(timed)
        tuner.post_hook(given, exception=None)
        if SESSION.updates or tuner.restore_value:
            result = run(partial(tuner.pre_hook, reset_only=True))
    tuner.nargs = None
    return result


def tuning_key(tuner: Any, given: dict[str, Any]) -> list[Any]:
    """The values and dtypes for which Triton times the configs once."""
    own = {name: value for name, value in given.items() if name in tuner.arg_names}
    dtypes = [str(value.dtype) for value in own.values() if hasattr(value, "dtype")]
    return [own[name] for name in tuner.keys if name in own] + dtypes


@cache
def parsed(source: str) -> ast.Module:
    """In place of `JITFunction.parse`: share one tree among the specialisations of a function."""
    return ast.parse(source)


def sharing(make: Callable[..., None]) -> Callable[..., None]:
    """In place of `tl.tensor.__init__`: let tensors of one type share their shape.

    The frontend wraps each size of it anew for every value of a kernel.
    """
    shared: dict[str, dict[str, Any]] = {}
    own = ("handle", "type", "dtype")

    def initialise(tensor: Any, handle: Any, type: Any) -> None:
        known = shared.get(type.name)
        if known is None:
            make(tensor, handle, type)
            shared[type.name] = {k: x for k, x in vars(tensor).items() if k not in own}
        else:
            vars(tensor).update(known, handle=handle, type=type, dtype=type.scalar)

    return initialise


@cache
def keep_memory() -> None:
    """Make the C library reuse freed arrays of up to 64 MB.

    By default it maps and unmaps larger ones each time, and the page faults take several times as
    long as the arithmetic. It keeps at most 512 MB for the rest of the process.
    """
    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt"):
        library.mallopt(M_MMAP_THRESHOLD, 64 << 20)
        library.mallopt(M_TRIM_THRESHOLD, 512 << 20)


class Session:
    """The replaced attributes of Triton and torch while the simulator is installed."""

    def __init__(self) -> None:
        self.options = Options()
        self.replaced = ExitStack()
        self.installed = False
        # Whether a launch read a storage that it also wrote, since somebody last cleared this.
        self.updates = False
        # Autotuned kernels and keys that were called.
        self.timed: set[tuple[Any, ...]] = set()

    def install(self, options: Options) -> None:
        self.options = options
        if self.installed:
            return
        self.installed = True
        do_compile, run = jit.JITFunction._do_compile, jit.JITFunction.run

        def run_anywhere(function: Any, *args: Any, **kwargs: Any) -> Any:
            return run(function, *args, **for_nvidia(function, kwargs))

        def compile_step(function: Any, *args: Any, **kwargs: Any) -> Any:
            from triton.compiler import compile as original

            function.compile = partial(compile_simulated, original)
            return do_compile(function, *args, **kwargs)

        keep_memory()
        self.replace(jit.JITFunction, "run", run_anywhere)
        self.replace(jit.JITFunction, "_do_compile", compile_step)
        self.replace(jit.JITFunction, "parse", lambda function: parsed(function.src))
        self.replace(tl.tensor, "__init__", sharing(tl.tensor.__init__))
        self.replace(autotuner.Autotuner, "run", run_autotuned)
        self.replace(driver, "_active", Driver())
        for owner, name, new in (*allocators(), *answers()):
            self.replace(owner, name, new)
        self.replaced.callback(FRESH.clear)

    def replace(self, owner: Any, name: str, new: Any) -> None:
        """Set an attribute until the session ends."""
        if name in vars(owner):
            self.replaced.callback(setattr, owner, name, vars(owner)[name])
        else:
            self.replaced.callback(delattr, owner, name)
        setattr(owner, name, new)

    def uninstall(self) -> None:
        """Restore everything; does nothing if nothing is installed."""
        self.replaced.close()
        self.installed = False


SESSION = Session()
