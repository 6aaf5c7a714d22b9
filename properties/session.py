"""A run of pytest with a target: whose kernels it judges, and on which device."""

import atexit
import gc
import os
import sys
import threading
import uuid
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager, suppress
from time import sleep
from typing import TYPE_CHECKING, NoReturn
from unittest.mock import patch

# One thread per worker: the workers are the parallelism. Set before anything imports torch.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest

from properties import HOME, ROOT, profiles
from properties.fuzz.strays import end_copies, end_marked, marking

if TYPE_CHECKING:
    import torch

    from properties.changed import Changed
    from properties.jobs import Selection
    from properties.laws import Subject
    from properties.targets import Target
    from properties.targets.ledger import Ledger

_CHANGED = pytest.StashKey["Changed | None"]()
_LEDGER: "pytest.StashKey[Ledger]" = pytest.StashKey()
# Op → how many times its share of examples each of its jobs draws: more than 1 if few are selected.
SHARE_FACTORS = pytest.StashKey[dict[str, float]]()
# The name of this run, the same in all its workers.
RUN = os.environ.get("PYTEST_XDIST_TESTRUNUID") or uuid.uuid4().hex

# The mark of what targets start in this process, of which a run may have several.
_MARK = uuid.uuid4().hex

# Errors of pytest or of its plugins, also in workers of xdist, with which it may pass.
_INTERNAL: list[object] = []

# Seconds in which Python may exit by itself.
_LEAVING = 30.0

# Before Hypothesis' plugin is configured, which loads the profile that the command line names.
profiles.register()


def pytest_configure(config: pytest.Config) -> None:
    # Before thousands of modules and items are made, all of which stay.
    gc.set_threshold(20_000, 20, 50)
    about = "ops(*names): the ops that a test of a tool is about, for --changed"
    config.addinivalue_line("markers", about)
    device = config.getoption("oracles_device")
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    if worker is not None and device in ("auto", "cuda"):
        _claim_gpu(int(worker.removeprefix("gw")))
    from properties.targets.ledger import read

    # First, to run after exit handlers of targets and of libraries that end their processes.
    atexit.register(_end_what_is_left, os.getpid())
    # As `python -m pytest` has it: an adapter need not be installed.
    sys.path.insert(0, str(config.invocation_params.dir))
    name, ledger = config.getoption("oracles_target"), config.getoption("oracles_ledger")
    try:
        with staying():
            target = target_of(config)
        selection(config).jobs(target)
        config.stash[_LEDGER] = read(ledger, name, device_of(config).type)
        config.stash[_CHANGED] = _changed(config)
    except ValueError as error:
        raise pytest.UsageError(str(error)) from error


def device_of(config: pytest.Config) -> "torch.device":
    """Activate the device of `--device`; return that of the tensors."""
    from properties.device import activate

    return activate(config.getoption("oracles_device"))


def target_of(config: pytest.Config) -> "Target":
    """Load the target of `--target`, on the device of `--device`."""
    from properties.targets import load

    return load(config.getoption("oracles_target"), device_of(config))


def selection(config: pytest.Config) -> "Selection":
    """The jobs that the command line asks for."""
    from properties.jobs import Selection

    names = (config.getoption(f"oracles_{what}") for what in ("op", "mode", "law", "dtype"))
    return Selection(*map(tuple, names))


@contextmanager
def staying() -> Iterator[None]:
    """Raise SystemExit where a target ends this process with `os._exit`: with code 0 it would pass
    all tests. Keep its streams open: from them pytest reads what each test prints. Mark what it
    starts, which ends with this process.
    """
    process, leave = os.getpid(), os._exit

    def refuse(code: int) -> NoReturn:
        if os.getpid() != process:
            leave(code)
        raise SystemExit(code)

    streams = _open_stream("stdout"), _open_stream("stderr")
    with patch.object(os, "_exit", refuse), streams[0], streams[1], marking(_MARK):
        yield


@contextmanager
def _open_stream(name: str) -> Iterator[None]:
    """Keep a stream of `sys` in its place, and open."""
    stream = getattr(sys, name)
    # One that a target has made of it closes it in the end.
    buffer = getattr(stream, "buffer", None)
    with ExitStack() as stack:
        for one, method in ((stream, "close"), (stream, "detach"), (buffer, "close")):
            with suppress(AttributeError):
                stack.enter_context(patch.object(one, method, lambda: buffer))
        stack.enter_context(patch.object(sys, name, stream))
        yield


# Within pytest's own, which sets the streams of a test.
@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_call() -> Generator[None]:
    with staying():
        return (yield)


def _changed(config: pytest.Config) -> "Changed | None":
    revision = config.getoption("oracles_changed")
    if revision is None:
        return None
    from properties.changed import Changed, files_since
    from properties.planting.closure import is_ours
    from properties.targets import NAMES

    target = config.getoption("oracles_target")
    if HOME or not is_ours(NAMES.get(target, target).partition(":")[0]):
        what = f"target {target!r}, expected one of a checkout of this suite"
        raise ValueError(f"--changed: {what}, as it knows the imports of no other repository")
    return Changed(*files_since(revision, config.rootpath), target)


def _claim_gpu(worker: int) -> None:
    """Map workers to GPUs round robin."""
    from properties.device import gpus

    # The machine's GPUs, also in a test of pytest on the simulator, which pretends to have one.
    if seen := gpus():
        os.environ["CUDA_VISIBLE_DEVICES"] = seen[worker % len(seen)]


# After `-k` and the like: how much a job draws depends on how many are left.
@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    changed = config.stash[_CHANGED]
    if changed is not None:
        _keep(config, items, lambda item: _is_reached(item, changed))
    if any("job" in _parameters(item) for item in items):
        _leave_out_jobs_at_rest(config, items)


def _keep(
    config: pytest.Config, items: list[pytest.Item], wanted: Callable[[pytest.Item], bool]
) -> None:
    kept: list[pytest.Item] = []
    left_out: list[pytest.Item] = []
    for item in items:
        (kept if wanted(item) else left_out).append(item)
    config.hook.pytest_deselected(items=left_out)
    items[:] = kept


def _parameters(item: pytest.Item) -> dict[str, object]:
    return item.callspec.params if hasattr(item, "callspec") else {}


def _is_reached(item: pytest.Item, changed: "Changed") -> bool:
    test = item.nodeid.split("::")[1].partition("[")[0]
    return changed.reaches(item.path, test, _parameters(item).values())


def _leave_out_jobs_at_rest(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the jobs that get no example in a run of so many jobs."""
    from hypothesis import settings

    from properties.jobs import Job, examples_of, share_factor

    target = target_of(config)
    max_examples = settings().max_examples
    jobs = {item: job for item in items if isinstance(job := _parameters(item).get("job"), Job)}
    changed = config.stash[_CHANGED]
    ops = {job.op for job in jobs.values()}
    # Those that a change reaches through another op draw as in a run of everything.
    near = {op for op in ops if changed is None or not changed.is_of_others(op)}
    factor = share_factor([job for job in jobs.values() if job.op in near], max_examples)
    factors = {op: factor if op in near else 1.0 for op in ops}
    config.stash[SHARE_FACTORS] = factors

    def draws(item: pytest.Item) -> bool:
        job = jobs.get(item)
        return job is None or examples_of(job, target, max_examples, factors[job.op]) > 0

    _keep(config, items, draws)


def pytest_internalerror(excrepr: object) -> None:
    _INTERNAL.append(excrepr)


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Pass a run in which the change reaches no test, and none that an internal error ended."""
    if exitstatus == pytest.ExitCode.OK and _INTERNAL:
        session.exitstatus = pytest.ExitCode.INTERNAL_ERROR
    changed = session.config.stash[_CHANGED]
    if changed is not None and exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED:
        session.exitstatus = pytest.ExitCode.OK


def _end_what_is_left(process: int) -> None:
    """End the processes that targets have left, unless this is one of them."""
    if os.getpid() == process and (left := [*end_marked(_MARK), *end_copies()]):
        told = ", ".join(sorted({command[:60] for command in left}))
        os.write(2, f"ended what a test has left running: {told}\n".encode())


def pytest_unconfigure(config: pytest.Config) -> None:
    """Let Python wait no longer for a thread or an exit handler that a target has left."""
    session = config.pluginmanager.getplugin("session")

    def insist() -> None:
        threading.main_thread().join()
        sleep(_LEAVING)
        os.write(2, b"a thread or an exit handler that the target left goes on; ended without it\n")
        _end_what_is_left(os.getpid())
        os._exit(int(session.exitstatus))

    # Where the machine has no thread for it, Python waits.
    with suppress(RuntimeError):
        threading.Thread(target=insist, daemon=True).start()


def pytest_collection_finish() -> None:
    """Keep the collector, which runs less often since the start, from looking at imported modules.

    This saves a twentieth of the suite's time.
    """
    gc.collect()
    gc.freeze()


def pytest_report_header(config: pytest.Config) -> list[str]:
    from hypothesis import settings

    from properties import scope
    from properties.device import describe

    seed = config.getoption("--hypothesis-seed")
    profile = settings.get_current_profile_name()
    name, device = config.getoption("oracles_target"), config.getoption("oracles_device")
    changed = config.stash[_CHANGED]
    asked = (config.getoption(f"oracles_{what}") for what in ("op", "mode"))
    return [
        f"attention-oracles: target {name} on {describe(device)}; profile {profile}, "
        f"seed {'drawn' if seed is None else seed}",
        *scope.missing(target_of(config), *asked),
        *(changed.header() if changed is not None else []),
    ]


@pytest.fixture(scope="session")
def subject(request: pytest.FixtureRequest) -> "Subject":
    """The implementation under test, on the device under test."""
    from properties.laws import Subject

    config = request.config
    return Subject(target_of(config), device_of(config), config.stash[_LEDGER], quick=True)


@pytest.fixture
def device(request: pytest.FixtureRequest) -> "torch.device":
    """The device under test, for tests that call no target."""
    return device_of(request.config)


@pytest.fixture
def gpu() -> "torch.device":
    """For tests of what runs on a GPU alone."""
    import torch

    if not torch.cuda.is_available():
        pytest.skip("wants a GPU")
    return torch.device("cuda")


@pytest.fixture(autouse=True)
def in_the_cpus_memory(request: pytest.FixtureRequest) -> Iterator[None]:
    """Tests beside the kernels that ask for no device make their tensors there, and are simulated
    where others run on a GPU."""
    from properties import simulator
    from properties.device import resolve

    beside = request.path.is_relative_to(ROOT / "kernels")
    anywhere = beside and not {"subject", "device", "gpu"} & set(request.fixturenames)
    if anywhere and resolve(request.config.getoption("oracles_device")) == "cuda":
        with simulator.simulating():
            yield
    else:
        yield
