"""The sizes of a problem, and the sets of them that are worth a name."""

import argparse
import random
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

Form = Literal["dense", "packed", "decode"]

_HIDDEN = 2048


@dataclass(frozen=True)
class Shape:
    """Batch, tokens, heads, head dim of queries and keys, head dim of values.

    Args:
        form: "packed" has the B sequences one after the other, of ragged lengths that are T tokens
            on average; "decode" is one token after a state.
    """

    B: int
    T: int
    H: int
    K: int
    V: int
    form: Form = "dense"

    @classmethod
    def parse(cls, text: str) -> "Shape":
        sizes = text.split(",")
        if len(sizes) != 5 or not all(size.isdecimal() and int(size) for size in sizes):
            raise argparse.ArgumentTypeError(
                f"{text!r}, expected five numbers above 0, B,T,H,K,V, such as 8,4096,32,64,64"
            )
        return cls(*map(int, sizes))

    @classmethod
    def read(cls, text: str) -> "Shape":
        """From what `str` made of it."""
        sizes, _, form = text.partition(" ")
        return replace(cls.parse(sizes), form=form or "dense")

    def __str__(self) -> str:
        form = "" if self.form == "dense" else f" {self.form}"
        return f"{self.B},{self.T},{self.H},{self.K},{self.V}{form}"

    @property
    def vectors(self) -> int:
        """How many queries there are."""
        return self.B * self.T * self.H

    @property
    def rows(self) -> tuple[int, int]:
        """The dims of a tensor before its heads."""
        return (1, self.B * self.T) if self.form == "packed" else (self.B, self.T)

    @property
    def boundaries(self) -> list[int]:
        """Where each sequence starts among all tokens, and where the last one ends."""
        tokens = self.B * self.T
        if self.form == "packed":
            inner = random.Random(0).sample(range(1, tokens), self.B - 1)
        else:
            inner = range(self.T, tokens, self.T)
        return [0, *sorted(inner), tokens]

    @property
    def lengths(self) -> list[int]:
        """Tokens of each sequence."""
        return [end - start for start, end in pairwise(self.boundaries)]


@dataclass(frozen=True)
class Preset:
    """Shapes by a name, and the ops that they are for; all if there are none."""

    about: str
    shapes: tuple[Shape, ...]
    ops: tuple[str, ...] = ()


def _of_dims(*dims: int) -> tuple[Shape, ...]:
    return tuple(Shape(8, 4096, _HIDDEN // dim, dim, dim) for dim in dims)


def _of_lengths(*lengths: int) -> tuple[Shape, ...]:
    longest = max(lengths)
    return tuple(Shape(longest // length, length, _HIDDEN // 64, 64, 64) for length in lengths)


PRESETS = {
    "usual": Preset(
        "short and long sequences, head dims 64 and 128",
        (Shape(8, 64, 32, 64, 64), Shape(8, 512, 32, 64, 64), *_of_dims(64, 128)),
    ),
    "dims": Preset(
        f"head dims 32 to 1024, {_HIDDEN} channels", _of_dims(32, 64, 128, 256, 512, 1024)
    ),
    "lengths": Preset("1024 to 65536 tokens, 65536 in all", _of_lengths(1024, 4096, 16384, 65536)),
    "report": Preset(
        "attention, gla and simple_gla at head dims 32, 128 and 1024",
        _of_dims(32, 128, 1024),
        ("attention", "gla", "simple_gla"),
    ),
}
DECODE = tuple(Shape(batch, 1, 16, 128, 128, "decode") for batch in (1, 4, 16, 64, 256))
