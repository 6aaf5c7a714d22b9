"""Every cache refuses wrong sizes by their names."""

import inspect
from typing import Any

import pytest
import torch

import kernels
import reference

_CACHES = {
    f"{library.__name__}.{name}": getattr(library, name)
    for library in (kernels, reference)
    for name in dir(library)
    if name.endswith("Cache") and (library, name) != (kernels, "KVCache")
}
# The other sizes are at least 1.
_MAY_BE_0 = {"sinks"}


def _sizes(make: type) -> list[str]:
    """The parameters that are integers."""
    parameters = inspect.signature(make).parameters.values()
    return [p.name for p in parameters if p.annotation in (int, int | None, "int", "int | None")]


@pytest.mark.parametrize(
    ("make", "size"),
    [
        pytest.param(make, size, id=f"{name}-{size}")
        for name, make in _CACHES.items()
        for size in _sizes(make)
    ],
)
def test_a_wrong_size_is_refused_by_its_name(make: type, size: str) -> None:
    parameters = inspect.signature(make).parameters
    sound: dict[str, Any] = dict.fromkeys(_sizes(make), 2)
    if "bits" in parameters:
        sound["bits"] = torch.int8
    make(**sound)
    least = 0 if size in _MAY_BE_0 else 1
    make(**sound | {size: least})
    with pytest.raises(ValueError, match=rf"^{size}: {least - 1}, expected at least {least}"):
        make(**sound | {size: least - 1})
    for wrong in (True, 2.0, "2"):
        with pytest.raises(TypeError, match=rf"^{size}: .*, expected an int"):
            make(**sound | {size: wrong})
