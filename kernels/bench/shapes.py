"""The sizes of a problem."""

import argparse
from dataclasses import dataclass

SHAPES = ("8,64,32,64,64", "8,512,32,64,64", "8,4096,32,64,64", "8,4096,16,128,128")


@dataclass(frozen=True)
class Shape:
    """Batch, tokens, heads, head dim of queries and keys, head dim of values."""

    B: int
    T: int
    H: int
    K: int
    V: int

    @classmethod
    def parse(cls, text: str) -> "Shape":
        sizes = text.split(",")
        if len(sizes) != 5 or not all(size.isdecimal() and int(size) for size in sizes):
            raise argparse.ArgumentTypeError(
                f"{text!r}, expected five numbers above 0, B,T,H,K,V, such as {SHAPES[2]}"
            )
        return cls(*map(int, sizes))

    def __str__(self) -> str:
        return f"{self.B},{self.T},{self.H},{self.K},{self.V}"

    @property
    def vectors(self) -> int:
        """How many queries there are."""
        return self.B * self.T * self.H
