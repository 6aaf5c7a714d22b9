"""Targets that fail in each way that a night must survive."""

import ctypes
import errno
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event, Lock, Thread
from time import sleep
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from properties.cases.case import Case
from properties.simulator import runtime
from properties.targets import Adapter, Implementation
from reference.norm.l2norm import l2norm as right
from reference.sums.cumsum import cumsum as right_sum

# Names the file that the first of several processes creates.
MARK = "PLANTED_MARK"
# Set once `drawing_endlessly` draws.
SEEKING = Event()
HELD = Lock()


def _adapter(function: Callable[[Tensor], Tensor]) -> Adapter:
    def l2norm(x: Tensor) -> Tensor:
        return function(x)

    return Adapter({"l2norm": {"fused": l2norm}})


def _first_time() -> bool:
    """Whether no process has asked this before."""
    try:
        Path(os.environ[MARK]).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def raising(device: torch.device) -> Adapter:
    """Raises the error of a bad argument."""

    def l2norm(x: Tensor) -> Tensor:
        raise ValueError("head dim 7 is not supported")

    return _adapter(l2norm)


def exiting(device: torch.device) -> Adapter:
    return _adapter(lambda x: sys.exit(3))


def interrupting(device: torch.device) -> Adapter:
    def l2norm(x: Tensor) -> Tensor:
        raise KeyboardInterrupt

    return _adapter(l2norm)


class Unwinding(BaseException):
    """Unwinds the stack of a library; no handler of errors catches it."""


def unwinding(device: torch.device) -> Adapter:
    def l2norm(x: Tensor) -> Tensor:
        raise Unwinding("all of it")

    return _adapter(l2norm)


class Speechless(Exception):
    def __str__(self) -> str:
        return str(self)


def speechless(device: torch.device) -> Adapter:
    """Raises an exception whose text cannot be had."""

    def l2norm(x: Tensor) -> Tensor:
        raise Speechless

    return _adapter(l2norm)


class Nameless(type):
    @property
    def __name__(cls) -> str:  # type: ignore[override]
        raise RuntimeError("no name")


class Obscure(OSError, metaclass=Nameless):
    """Raises an error when asked for its name, its class or its number."""

    errno = property(lambda self: 1 / 0)
    __class__ = property(lambda self: 1 / 0)


def obscure(device: torch.device) -> Adapter:
    def l2norm(x: Tensor) -> Tensor:
        raise Obscure("said")

    return _adapter(l2norm)


def colourful(device: torch.device) -> Adapter:
    """Raises an exception whose text would change the colours of a terminal."""

    def l2norm(x: Tensor) -> Tensor:
        raise ValueError("\x1b[31mred\x1b[0m\0")

    return _adapter(l2norm)


def verbose(device: torch.device) -> Adapter:
    """Raises an exception with the text of a whole program."""

    def l2norm(x: Tensor) -> Tensor:
        raise ValueError("much " * 200_000)

    return _adapter(l2norm)


def misspelling(device: torch.device) -> Adapter:
    """Raises an exception about a file whose name is no text."""

    def l2norm(x: Tensor) -> Tensor:
        raise FileNotFoundError("no file '\udcff'")

    return _adapter(l2norm)


def returning_a_list(device: torch.device) -> Adapter:
    def l2norm(x: Tensor) -> Any:
        return [right(x)]

    return _adapter(l2norm)


def returning_more(device: torch.device) -> Adapter:
    def l2norm(x: Tensor) -> Any:
        return right(x), 3

    return _adapter(l2norm)


def forking(device: torch.device) -> Adapter:
    """Returns in two processes, and in the second one, which is faster, another result."""

    def l2norm(x: Tensor) -> Tensor:
        first = os.fork()
        sleep(0.1 if first else 0.0)
        return right(x) if first else 2 * right(x)

    return _adapter(l2norm)


def littering_files(device: torch.device) -> Adapter:
    """Leaves files open, so that a process can judge few cases."""
    if multiprocessing.parent_process() is not None:
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 30, hard))

    def l2norm(x: Tensor) -> Tensor:
        for _ in range(8):
            os.open(os.devnull, os.O_RDONLY)
        return right(x)

    return _adapter(l2norm)


def filling_a_disk(device: torch.device) -> Adapter:
    """Prints to a file on a full disk."""

    def l2norm(x: Tensor) -> Tensor:
        raise OSError(errno.ENOSPC, "No space left on device")

    return _adapter(l2norm)


def printing(device: torch.device) -> Adapter:
    """Raises an error if somebody can see what it prints."""

    def l2norm(x: Tensor) -> Tensor:
        if {os.readlink(f"/proc/self/fd/{number}") for number in (1, 2)} != {os.devnull}:
            raise ValueError("seen")
        return right(x)

    return _adapter(l2norm)


def wandering(device: torch.device) -> Adapter:
    """Goes to another folder where it is loaded, and to one that is gone in each call."""
    os.chdir("/")

    def l2norm(x: Tensor) -> Tensor:
        with TemporaryDirectory() as folder:
            os.chdir(folder)
        return right(x)

    return _adapter(l2norm)


def homeless(device: torch.device) -> Adapter:
    """Removes a folder where it is loaded, and raises an error in each call."""
    with suppress(FileNotFoundError):
        os.rmdir(os.environ[MARK])
    return raising(device)


def muting(device: torch.device) -> Adapter:
    """Allows its process no more bytes in files."""

    def l2norm(x: Tensor) -> Tensor:
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
        return right(x)

    return _adapter(l2norm)


def saved_meanwhile(device: torch.device) -> Adapter:
    """Its second process finds half of a module, as an editor may leave it for a moment."""
    if multiprocessing.parent_process() is not None:
        with Path(os.environ[MARK]).open("a") as mark:
            mark.write("loaded\n")
        if Path(os.environ[MARK]).read_text().count("loaded") == 2:
            compile("def l2norm(", "saved.py", "exec")

    def l2norm(x: Tensor) -> Tensor:
        raise MemoryError

    return _adapter(l2norm)


def leaving(device: torch.device) -> Adapter:
    """Ends its process as if all were well."""
    return _adapter(lambda x: os._exit(0))


def stillborn(device: torch.device) -> Adapter:
    """Ends each process of the night that loads it."""
    return _loaded_with(lambda: os._exit(1))


def leaving_at_once(device: torch.device) -> Adapter:
    """Ends each process of the night that loads it, with exit code 0."""
    return _loaded_with(lambda: os._exit(0))


def crashing_at_once(device: torch.device) -> Adapter:
    """Crashes each process of the night that loads it."""
    return _loaded_with(lambda: os.kill(os.getpid(), signal.SIGSEGV))


def hanging_at_once(device: torch.device) -> Adapter:
    """Hangs in each process of the night that loads it."""
    return _loaded_with(lambda: sleep(1000))


class Composed(ValueError):
    """Cannot be unpickled."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(first + second)


def refusing_at_once(device: torch.device) -> Adapter:
    """Raises an error in each process of the night that loads it."""

    def refuse() -> None:
        raise Composed("not ", "here")

    return _loaded_with(refuse)


def breaking_at_once(device: torch.device) -> Adapter:
    """Raises what nobody expects in each process of the night that loads it."""

    def refuse() -> None:
        raise Unwinding("not here either")

    return _loaded_with(refuse)


def interrupting_at_once(device: torch.device) -> Adapter:
    """Raises what Ctrl-C does in each process of the night that loads it."""

    def interrupt() -> None:
        raise KeyboardInterrupt

    return _loaded_with(interrupt)


def _loaded_with(first: Callable[[], object]) -> Adapter:
    if multiprocessing.parent_process() is not None:
        first()
    return _adapter(right)


def killed(device: torch.device) -> Adapter:
    """Is killed each time, as far as others can tell from outside."""

    def l2norm(x: Tensor) -> Tensor:
        ctypes.CDLL(None).kill(os.getpid(), signal.SIGKILL)
        return x

    return _adapter(l2norm)


def giving_up(device: torch.device) -> Adapter:
    """Ends all of its processes, as a server does."""

    def l2norm(x: Tensor) -> Tensor:
        os.killpg(os.getpgrp(), signal.SIGTERM)
        return x

    return _adapter(l2norm)


def crashing(device: torch.device) -> Adapter:
    def l2norm(x: Tensor) -> Tensor:
        os.kill(os.getpid(), signal.SIGSEGV)
        return x

    return _adapter(l2norm)


def _bounded(bound: Callable[[Case], Case]) -> Adapter:
    def l2norm(x: Tensor) -> Tensor:
        return right(x)

    return Adapter({"l2norm": {"fused": Implementation(l2norm, bounds={"a bound": bound})}})


def exiting_from_a_bound(device: torch.device) -> Adapter:
    return _bounded(lambda case: sys.exit(3))


def drawing_endlessly(device: torch.device) -> Adapter:
    """A bound that seeks a case that does not exist."""

    def bound(case: Case) -> Case:
        SEEKING.set()
        while True:
            case = replace(case, seed=case.seed + 1)

    return _bounded(bound)


def drawing_in_compiled_code(device: torch.device) -> Adapter:
    """A bound that no exception interrupts while somebody has `HELD`."""

    def bound(case: Case) -> Case:
        with HELD:
            return case

    return _bounded(bound)


def waiting_once(device: torch.device) -> Adapter:
    """The first call writes its process id and waits to be killed."""

    def l2norm(x: Tensor) -> Tensor:
        if _first_time():
            Path(os.environ[MARK]).write_text(f"{os.getpid()}\n")
            sleep(1000)
        return right(x)

    return _adapter(l2norm)


def waiting_once_but_wrong(device: torch.device) -> Adapter:
    """Like `waiting_once`, and refuses bfloat16."""

    def l2norm(x: Tensor) -> Tensor:
        if x.dtype == torch.bfloat16:
            raise TypeError("no bfloat16")
        if _first_time():
            Path(os.environ[MARK]).write_text(f"{os.getpid()}\n")
            sleep(1000)
        # Squares overflow float16.
        return right(x.float()).to(x.dtype)

    return _adapter(l2norm)


def exhausted_once(device: torch.device) -> Adapter:
    def l2norm(x: Tensor) -> Tensor:
        if _first_time():
            raise MemoryError
        return right(x)

    return _adapter(l2norm)


def hanging(device: torch.device) -> Adapter:
    """Hangs, deaf to every signal that Python handles."""

    def l2norm(x: Tensor) -> Tensor:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
        while True:
            sleep(1)

    return _adapter(l2norm)


def unruly(device: torch.device) -> Adapter:
    """Starts a process that outlives it, takes over the signal that asks where it is, and hangs."""

    def l2norm(x: Tensor) -> Tensor:
        child = subprocess.Popen(["sleep", "1000"])
        Path(os.environ[MARK]).write_text(str(child.pid))
        signal.signal(signal.SIGUSR1, signal.SIG_DFL)
        sleep(1000)
        return x

    return _adapter(l2norm)


def _start_daemon_once() -> None:
    if _first_time() and os.fork() == 0:
        os.setsid()
        if (daemon := os.fork()) == 0:
            sleep(1000)
        Path(os.environ[MARK]).write_text(str(daemon))
        os._exit(0)


def daemonising(device: torch.device) -> Adapter:
    """Starts a process in a session of its own, whose parent ends at once."""

    def l2norm(x: Tensor) -> Tensor:
        _start_daemon_once()
        return right(x)

    return _adapter(l2norm)


def hanging_beside(device: torch.device) -> Adapter:
    """Hangs in its second thread, for which the first one waits."""

    def l2norm(x: Tensor) -> Tensor:
        second = Thread(target=_spin)
        second.start()
        second.join()
        return x

    return _adapter(l2norm)


def _spin() -> None:
    while True:
        pass


def hanging_in_calls(device: torch.device) -> Adapter:
    """Hangs in a loop that spends its time on calls."""

    def nothing() -> None:
        pass

    def l2norm(x: Tensor) -> Tensor:
        while True:
            nothing()

    return _adapter(l2norm)


def endless(device: torch.device) -> Adapter:
    """A Triton kernel with an endless loop."""

    def l2norm(x: Tensor) -> Tensor:
        y = torch.zeros_like(x)
        _endless[(1,)](y, 1 << 17)
        return y

    return _adapter(l2norm)


@triton.jit  # type: ignore[untyped-decorator]
def _endless(y, SIZE: tl.constexpr):  # type: ignore[no-untyped-def]
    count = tl.program_id(0)
    # A turn takes so long that the simulator's turn limit is minutes away.
    row = tl.arange(0, SIZE)
    while count >= 0:
        count = (count + 1) % 7
        row = (row + count) % SIZE
    tl.store(y, tl.sum(row))


def turning(device: torch.device) -> Adapter:
    """An endless loop that reaches the turn limit soon."""
    runtime.LOOP_LIMIT = 1000

    def l2norm(x: Tensor) -> Tensor:
        y = torch.zeros_like(x)
        _endless[(1,)](y, 2)
        return y

    return _adapter(l2norm)


def hanging_once(device: torch.device) -> Adapter:
    """Takes long to raise an error, but less long the second time."""

    def l2norm(x: Tensor) -> Tensor:
        if _first_time():
            sleep(1000)
        raise ValueError("after a while")

    return _adapter(l2norm)


def starved(device: torch.device) -> Adapter:
    """The first call needs little time of a core that another process keeps for three seconds."""

    def l2norm(x: Tensor) -> Tensor:
        if _first_time():
            _starve()
        return right(x)

    return _adapter(l2norm)


def starved_beside(device: torch.device) -> Adapter:
    """Like `starved`, in a second thread that the first one waits for, as PyTorch's own do."""

    def l2norm(x: Tensor) -> Tensor:
        if _first_time():
            second = Thread(target=_starve)
            second.start()
            second.join()
        return right(x)

    return _adapter(l2norm)


def _starve() -> None:
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    until = "from time import *; end = time() + 3\nwhile time() < end: pass"
    busy = subprocess.Popen([sys.executable, "-c", until])
    # Some time is left to it, as other cores may be busy as well and only root gets back.
    os.setpriority(os.PRIO_PROCESS, 0, 19)
    while busy.poll() is None:
        pass
    os.sched_setaffinity(0, cores)
    with suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, 0)


def outside(device: torch.device) -> Adapter:
    """A Triton kernel that goes out of bounds."""

    def l2norm(x: Tensor) -> Tensor:
        y = torch.empty_like(x)
        # Past all memory that any layout of x uses.
        _outside[(1,)](x, y, x.untyped_storage().size() // x.element_size())
        return y

    return _adapter(l2norm)


def between_rows(device: torch.device) -> Adapter:
    """Wrong values, of a Triton kernel that reads between the rows of its argument."""

    def l2norm(x: Tensor) -> Tensor:
        rows, y = torch.zeros(32, 2)[:, 0], torch.empty(16)
        _outside[(1,)](rows, y, 1)
        return right(x) + 1 + y[0]

    return _adapter(l2norm)


def sharing(device: torch.device) -> Adapter:
    """Two ops whose kernels go out of bounds in a shared function."""

    # Of a slice, the row after it may lie within the same memory: wrong numbers, no bad address.
    def l2norm(x: Tensor) -> Tensor:
        y = torch.empty_like(x)
        _outside[(1,)](x.clone(), y, x.numel())
        return y

    def short_conv(x: Tensor, weight: Tensor) -> Tensor:
        y = torch.empty_like(x)
        _outside_too[(1,)](weight.clone(), y, weight.numel())
        return y

    return Adapter({"l2norm": {"fused": l2norm}, "short_conv": {"fused": short_conv}})


@triton.jit
def _row_after(x, size):  # type: ignore[no-untyped-def]
    return tl.load(x + size + tl.arange(0, 16))


@triton.jit
def _outside(x, y, size):  # type: ignore[no-untyped-def]
    tl.store(y + tl.arange(0, 16), _row_after(x, size))


@triton.jit
def _outside_too(x, y, size):  # type: ignore[no-untyped-def]
    tl.store(y + tl.arange(0, 16), _row_after(x, size) * 2)


def miscounting(device: torch.device) -> Adapter:
    """Three ops whose kernels share a wrong function, and one whose kernel does not call it."""

    def l2norm(x: Tensor) -> Tensor:
        return _elementwise(_one_more, x)

    def token_shift(x: Tensor) -> Tensor:
        return _elementwise(_two_more, x)

    def strength_gate(x: Tensor) -> Tensor:
        return _elementwise(_three_more, x)

    def cumsum(x: Tensor) -> Tensor:
        _elementwise(_copy, x)
        return right_sum(x)

    ops = {f.__name__: {"fused": f} for f in (l2norm, token_shift, strength_gate, cumsum)}
    return Adapter(ops)


def _elementwise(kernel: Any, x: Tensor) -> Tensor:
    y = torch.empty(x.shape, dtype=x.dtype)
    # Few programs, as the interpreter runs one after the other.
    kernel[(triton.cdiv(x.numel(), _BLOCK.value),)](x.contiguous(), y, x.numel())
    return y


_BLOCK = tl.constexpr(1024)


@triton.jit
def _here():  # type: ignore[no-untyped-def]
    return tl.program_id(0) * _BLOCK + tl.arange(0, _BLOCK)


@triton.jit
def _wrong(x, size):  # type: ignore[no-untyped-def]
    return tl.load(x + _here(), mask=_here() < size) * 2


@triton.jit
def _one_more(x, y, size):  # type: ignore[no-untyped-def]
    tl.store(y + _here(), _wrong(x, size) + 1, mask=_here() < size)


@triton.jit
def _two_more(x, y, size):  # type: ignore[no-untyped-def]
    tl.store(y + _here(), _wrong(x, size) + 2, mask=_here() < size)


@triton.jit
def _three_more(x, y, size):  # type: ignore[no-untyped-def]
    tl.store(y + _here(), _wrong(x, size) + 3, mask=_here() < size)


@triton.jit
def _copy(x, y, size):  # type: ignore[no-untyped-def]
    tl.store(y + _here(), tl.load(x + _here(), mask=_here() < size), mask=_here() < size)


def twofold(device: torch.device) -> Adapter:
    """Two bugs in one kernel: even dims raise, and long odd ones are wrong."""

    def l2norm(x: Tensor) -> Tensor:
        if x.shape[-1] % 2 == 0:
            raise ArithmeticError("even")
        return right(x) * (1 if x.shape[-1] < 7 else 2)

    return _adapter(l2norm)


def worsening(device: torch.device) -> Adapter:
    """Off by little, and NaN in element 40 of long rows; gradients are right, so one sign shows."""

    def l2norm(x: Tensor) -> Tensor:
        y = right(x)
        error = y.detach() * 2.0**-18
        error[..., 40:41] = torch.nan
        return y + error

    return _adapter(l2norm)


def doubling(device: torch.device) -> Adapter:
    """Two bugs that make one result wrong: in packs with an empty sequence, and in reverse."""

    def cumsum(
        x: Tensor,
        *,
        chunk_size: int | None = None,
        reverse: bool = False,
        cu_seqlens: Tensor | None = None,
    ) -> Tensor:
        wrong = reverse or (cu_seqlens is not None and not cu_seqlens.diff().all())
        y = right_sum(x, chunk_size=chunk_size, reverse=reverse, cu_seqlens=cu_seqlens)
        return 2 * y if wrong else y

    return Adapter({"cumsum": {"fused": cumsum}})


def flaky(device: torch.device) -> Adapter:
    """Every third call of a process is wrong."""
    calls = count(1)

    def l2norm(x: Tensor) -> Tensor:
        return 2 * right(x) if next(calls) % 3 == 0 else right(x)

    return _adapter(l2norm)


def rarely_wrong(device: torch.device) -> Adapter:
    """Every thirteenth call of a process is wrong; three cases make fewer."""
    calls = count(1)
    return _adapter(lambda x: right(x) * (1 if next(calls) % 13 else 2))


def wearing_out(device: torch.device) -> Adapter:
    """Wrong after ten calls in a process; three cases make at most nine."""
    calls = count()
    return _adapter(lambda x: right(x) * (1 if next(calls) < 10 else 2))


def good(device: torch.device) -> Adapter:
    return _adapter(right)


def slow(device: torch.device) -> Adapter:
    """Takes its time, and starts what `daemonising` does."""

    def l2norm(x: Tensor) -> Tensor:
        _start_daemon_once()
        sleep(0.1)
        return right(x)

    return _adapter(l2norm)


def littering(device: torch.device) -> Adapter:
    """Creates a file where a folder is expected."""

    def l2norm(x: Tensor) -> Tensor:
        _first_time()
        raise ValueError("littered")

    return _adapter(l2norm)


def marking_then_hanging(device: torch.device) -> Adapter:
    """Reports that it is running, and hangs at the third call."""
    calls = []

    def l2norm(x: Tensor) -> Tensor:
        calls.append(x.shape)
        if len(calls) > 2:
            _first_time()
            sleep(1000)
        return right(x)

    return _adapter(l2norm)


def growing(device: torch.device) -> Adapter:
    """Leaks everything it is given; reports each process that it runs in."""
    leaked = []
    with Path(os.environ[MARK]).open("a") as mark:
        mark.write(f"{os.getpid()}\n")

    def l2norm(x: Tensor) -> Tensor:
        leaked.append(bytearray(2 << 20))
        return right(x)

    return _adapter(l2norm)


def looking(device: torch.device) -> Adapter:
    """Reports the GPUs that each process sees."""
    with Path(os.environ[MARK]).open("a") as mark:
        mark.write(f"{os.environ.get('CUDA_VISIBLE_DEVICES')}\n")
    return _adapter(right)


def raising_and_counting(device: torch.device) -> Adapter:
    """Writes a line for each call."""

    def l2norm(x: Tensor) -> Tensor:
        with Path(os.environ[MARK]).open("a") as mark:
            mark.write("called\n")
        raise ValueError("at last")

    return _adapter(l2norm)


def raising_in_the_end(device: torch.device) -> Adapter:
    """Reports that it is running, and raises during exit."""

    def l2norm(x: Tensor) -> Tensor:
        _first_time()
        while _can_write():
            sleep(0.05)
        raise ValueError("in the end")

    return _adapter(l2norm)


def _can_write() -> bool:
    return resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY
