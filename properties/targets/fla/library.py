"""The installed release of fla."""

import re
import sys
from collections.abc import Callable
from functools import cache, partial, wraps
from importlib import import_module
from importlib.util import find_spec
from inspect import signature
from pathlib import Path
from types import ModuleType
from typing import Any
from warnings import catch_warnings

from triton.runtime import JITFunction

Kernel = Callable[..., Any]


def release() -> tuple[int, ...]:
    """The version of the fla that is imported, such as (0, 6, 0), without what follows a third dot
    or a letter. A checkout has no metadata, so the package's own text says it.

    Raises:
        ModuleNotFoundError: there is no fla.
        ValueError: it does not say its version.
    """
    spec = find_spec("fla")
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError("No module named 'fla'", name="fla")
    file = Path(spec.submodule_search_locations[0], "__init__.py")
    text = file.read_text() if file.is_file() else ""
    found = re.search(r"""^__version__ = ["'](\d+(?:\.\d+){0,2})""", text, re.MULTILINE)
    if found is None:
        raise ValueError(f"fla: no __version__ in {file}, expected that of a release")
    return tuple(int(part) for part in found[1].split("."))


def kernel(name: str) -> Kernel | None:
    """A public function if the release has it: "package.module:function", or several such names
    with blanks between them, of this release and of earlier ones.

    Raises:
        ImportError: a module of the release cannot be imported.
    """
    _without_models()
    found = next((f for f in map(_found, name.split()) if f is not None), None)
    # A retired function takes anything and raises when called.
    if found is None or all(p.kind is p.VAR_KEYWORD for p in signature(found).parameters.values()):
        return None
    # Releases up to 0.4 put heads before tokens, at first by default.
    if "head_first" in signature(found).parameters:
        return partial(found, head_first=False)
    return found


def _found(name: str) -> Kernel | None:
    module, _, attribute = name.partition(":")
    try:
        return vars(_imported(module)).get(attribute)
    except Exception as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is not None and module.startswith(missing):
            return None
        raise ImportError(f"{module} cannot be imported: {error}") from error


def _imported(module: str) -> ModuleType:
    """A module of the library, without the warnings that it sets off in torch, some thirty."""
    with catch_warnings(action="ignore"):
        return import_module(module)


@cache
def allow_constants_of_earlier_tritons() -> None:
    """In releases before 0.6, take a constant that `do_not_specialize` lists too for a constant.

    Triton refuses it today, and did not in their day.
    """
    try:
        if release() >= (0, 6):
            return
    except ModuleNotFoundError:
        return
    made = JITFunction.__init__

    @wraps(made)
    def init(self: Any, fn: Kernel, **options: Any) -> None:
        parameters = signature(fn).parameters.items()
        constant = {name for name, p in parameters if "constexpr" in str(p.annotation)}
        listed = options.get("do_not_specialize") or ()
        options["do_not_specialize"] = [name for name in listed if name not in constant]
        made(self, fn, **options)

    JITFunction.__init__ = init


def forget_the_gpu() -> None:
    """Let the functions by which kernels choose tiles ask for the shared memory again."""
    utils = vars(import_module("fla.utils"))
    for name in ("get_all_max_shared_mem", "check_shared_mem"):
        if hasattr(utils.get(name), "cache_clear"):
            utils[name].cache_clear()


def _without_models() -> None:
    """Import the package without its layers and models.

    Releases up to 0.3.1 import them first, though operations do not need them: they need
    transformers, and not a later release of it than that of their day.
    """
    spec = None if "fla" in sys.modules else find_spec("fla")
    if spec is None or spec.submodule_search_locations is None:
        return
    try:
        _imported("fla")
    except Exception:
        for name in [n for n in sys.modules if n == "fla" or n.startswith("fla.")]:
            del sys.modules[name]
        bare = ModuleType("fla")
        bare.__path__ = list(spec.submodule_search_locations)
        bare.__spec__ = spec
        sys.modules["fla"] = bare
