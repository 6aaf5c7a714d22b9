"""The oracle's answers, kept on disk: they do not change with the kernels."""

import hashlib
import io
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from properties.files import write_atomically

T = TypeVar("T")


class OracleCache:
    """A cache of results by all that they depend on.

    A damaged answer is computed anew, and a full disk keeps none: an error would count as one of
    the law that asks.

    Args:
        folder: the cache's folder.
        codes: op → digest of the code that computes its results.
    """

    def __init__(self, folder: Path, codes: Mapping[str, str]) -> None:
        self.folder = folder
        self.codes = codes

    def __call__(self, about: tuple[Any, ...], compute: Callable[[], T]) -> T:
        """Return the cached result of `compute`; `about` begins with an op."""
        digest = hashlib.sha256(self.codes[about[0]].encode())
        _update(digest, about)
        path = self.folder / digest.hexdigest()[:2] / digest.hexdigest()[2:32]
        try:
            known: T = torch.load(path, weights_only=False)
        # Unpickling other contents may raise anything.
        except Exception:
            known = compute()
            with suppress(OSError):
                _save(known, path)
        return known


def _update(digest: Any, about: Any) -> None:
    match about:
        case Tensor():
            digest.update(f"{about.dtype} {tuple(about.shape)}".encode())
            # Copy first: one element is contiguous with any stride, but a view as bytes needs a
            # stride of 1.
            x = about.detach().cpu().clone(memory_format=torch.contiguous_format)
            digest.update(x.flatten().view(torch.uint8).numpy())
        case Mapping():
            for name, value in about.items():
                digest.update(f"{name}=".encode())
                _update(digest, value)
        case list() | tuple():
            for value in about:
                _update(digest, value)
        case _:
            digest.update(f"{about!r};".encode())


def _save(what: object, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    contents = io.BytesIO()
    torch.save(what, contents)
    write_atomically(path, contents.getvalue())
