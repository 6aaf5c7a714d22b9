"""The installed release of fla."""

import sys
from collections.abc import Callable
from functools import partial
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from inspect import signature
from types import ModuleType
from typing import Any

Kernel = Callable[..., Any]


def release() -> tuple[int, ...]:
    """The installed version, such as (0, 6, 0); fla is one package or two, depending on the
    release.
    """
    try:
        text = version("flash-linear-attention")
    except PackageNotFoundError:
        text = version("fla-core")
    return tuple(int(part) for part in text.split("."))


def kernel(name: str) -> Kernel | None:
    """A public function, "package.module:function", if the release has it."""
    module, _, attribute = name.partition(":")
    _without_models()
    try:
        found: Kernel | None = getattr(import_module(module), attribute, None)
    except ModuleNotFoundError as error:
        if error.name is None or not module.startswith(error.name):
            raise
        return None
    # A retired function takes anything and raises when called.
    if found is None or all(p.kind is p.VAR_KEYWORD for p in signature(found).parameters.values()):
        return None
    # Releases up to 0.4 put heads before tokens, at first by default.
    if "head_first" in signature(found).parameters:
        return partial(found, head_first=False)
    return found


def _without_models() -> None:
    """Import the package without its layers and models, which need transformers.

    Releases up to 0.2 import them first, though operations do not need them.
    """
    if "fla" in sys.modules or find_spec("transformers") is not None:
        return
    spec = find_spec("fla")
    if spec is None or spec.submodule_search_locations is None:
        return
    try:
        import_module("fla")
    except ModuleNotFoundError as error:
        if error.name != "transformers":
            raise
        for name in [n for n in sys.modules if n.startswith("fla.")]:
            del sys.modules[name]
        bare = ModuleType("fla")
        bare.__path__ = list(spec.submodule_search_locations)
        sys.modules["fla"] = bare
