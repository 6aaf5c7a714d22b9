"""Functions and classes that the installed release of transformers has."""

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

from properties.targets.bare import Absent


def model_of(name: str) -> ModuleType:
    """A model's module.

    Raises:
        Absent: the release does not have the model.
    """
    if find_spec(f"transformers.models.{name}") is None:
        raise Absent("this release has no such model")
    return import_module(f"transformers.models.{name}.modeling_{name}")


def lacks(attempt: Callable[[], object]) -> str:
    """Why the release does not have what an adapter calls: no such model, or another signature."""
    try:
        attempt()
    except Absent as error:
        return str(error)
    except (ImportError, AttributeError, TypeError) as error:
        return f"{type(error).__name__}: {error}"
    except Exception:
        # The laws judge other errors.
        return ""
    return ""
