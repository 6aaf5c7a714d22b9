"""The targets: whose kernels are under test."""

from importlib import import_module
from traceback import extract_tb

from torch import device as Device

from properties.device import keeping_state
from properties.targets.adapter import Adapter, Implementation
from properties.targets.target import Target
from properties.verdict.exceptions import message_of

__all__ = ["NAMES", "Adapter", "Implementation", "Target", "load"]

# Functions of the device, imported on demand: importing kernels before a device is activated is
# wrong, and other libraries may be missing.
NAMES = {
    "ours": "properties.targets.ours:target",
    "oracle": "properties.targets.oracle:target",
    "torch": "properties.targets.pytorch:target",
    "fla": "properties.targets.fla:target",
    "transformers": "properties.targets.transformers:target",
    "sglang": "properties.targets.sglang:target",
    "vllm": "properties.targets.vllm:target",
}


def load(name: str, device: Device) -> Target:
    """Return the target of this name for kernels on `device`.

    Args:
        name: one of `NAMES`, or "package.module:attribute" of a function of the device that returns
            a `Target`.

    Raises:
        ValueError: there is none, its code fails, what it needs is not installed, or it states
            something of another type than `Target` says.
    """
    module, colon, attribute = NAMES.get(name, name).partition(":")
    if not (module and colon and attribute):
        raise ValueError(
            f"target: {name!r}, expected one of {', '.join(NAMES)}, or package.module:attribute"
        )
    try:
        with keeping_state():
            make = getattr(import_module(module), attribute, None)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        # A module of tests may skip itself.
        raise ValueError(f"target: {name!r} cannot be imported: {_told(error)}") from error
    if not callable(make):
        what = "no" if make is None else "no callable"
        raise ValueError(f"target: {module} has {what} {attribute!r}, expected a function")
    try:
        with keeping_state():
            made = make(device)
            if isinstance(made, Target):
                made.name = name
                made.check()
    except (ValueError, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise ValueError(f"target: {name!r} cannot be made: {_told(error)}") from error
    if not isinstance(made, Target):
        kind = type(made).__name__
        raise ValueError(f"target: {name!r} returned {kind}, expected a properties.targets.Target")
    return made


def _told(error: BaseException) -> str:
    kind = "" if isinstance(error, ImportError) else f"{type(error).__name__}: "
    return kind + message_of(error) + _place(error)


def _place(error: BaseException) -> str:
    """The line outside of this file that an exception comes from, such as an import's."""
    own = (__file__, import_module.__code__.co_filename)
    lines = [
        f", at {frame.filename}:{frame.lineno}"
        for frame in extract_tb(error.__traceback__)
        if frame.filename not in own and not frame.filename.startswith("<")
    ]
    return lines[-1] if lines else ""
