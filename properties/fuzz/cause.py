"""Causes: source lines and functions shared by several ops that explain several buckets.

A wrong value has no source line of its own, unlike a wrong address, so a bug in a function that
many kernels call shows as a bucket for each family, law and output. Such a line was launched by
every failing case of these buckets, and most of the ops that launched it fail.
"""

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from itertools import groupby

from properties.counted import counted
from properties.fuzz.bucket import Bucket

# A place is a cause if at least so many ops that ran it fail, and this part of them all. What
# nearly every op runs explains any set of bugs, unless nearly every op fails.
_OPS, _PART = 3, 0.5
_NEARLY_ALL = 0.9
# Where many explain as much, so many are named.
_PLACES = 3


@dataclass(frozen=True, eq=False)
class Cause:
    """Buckets that one place in the source explains.

    Args:
        place: the lines that explain them equally well: "kernels/primitives/rows.py:41-52".
        failed: ops that launched these lines and fail.
        launched: all ops that launched them.
    """

    place: str
    buckets: tuple[Bucket, ...]
    failed: int
    launched: int

    @property
    def line(self) -> str:
        return (
            f"{len(self.buckets)} failures that {self.place} would explain: "
            f"{self.failed} of the {self.launched} ops that launch it fail"
        )


def causes(buckets: Iterable[Bucket], ran: Mapping[str, AbstractSet[str]]) -> list[Cause]:
    """The causes of some buckets, the one that explains most of them first.

    Args:
        ran: op → the lines that its cases launched, of those that could have shown wrong values.
    """
    left = [bucket for bucket in buckets if bucket.code and not bucket.first.fingerprint.place]
    explaining: list[Cause] = []
    while cause := _largest(left, ran):
        explaining.append(cause)
        left = [bucket for bucket in left if bucket not in cause.buckets]
    return explaining


def _largest(left: Sequence[Bucket], ran: Mapping[str, AbstractSet[str]]) -> Cause | None:
    """The cause that explains most buckets."""
    explained: dict[str, list[Bucket]] = {}
    for bucket in left:
        for line in bucket.code:
            explained.setdefault(line, []).append(bucket)
    best: tuple[int, float] = (1, 0.0)
    alike: list[tuple[str, Cause]] = []
    for line, group in explained.items():
        if len(group) < best[0]:
            continue
        failing = {op for bucket in group for op in bucket.ops}
        failed, launched = len(failing), len(failing.union(op for op in ran if line in ran[op]))
        rank = len(group), failed / max(1, launched)
        part = _NEARLY_ALL if launched > _NEARLY_ALL * len(ran) else _PART
        if len(group) < 2 or failed < _OPS or rank[1] < part or rank < best:
            continue
        if rank > best:
            best, alike = rank, []
        alike.append((line, Cause(line, tuple(group), failed, launched)))
    if not alike:
        return None
    first = alike[0][1]
    same = [line for line, cause in alike if cause.buckets == first.buckets]
    return Cause(_place(same), first.buckets, first.failed, first.launched)


def _place(lines: Iterable[str]) -> str:
    """Lines as their files and the range in each."""
    parts = sorted(
        (file, int(number)) for file, _, number in (one.rpartition(":") for one in lines)
    )
    places = []
    for file, group in groupby(parts, key=lambda part: part[0]):
        numbers = [number for _, number in group]
        places.append(f"{file}:{numbers[0]}" + (f"-{numbers[-1]}" if len(numbers) > 1 else ""))
    more = len(places) - _PLACES
    return " or ".join([*places[:_PLACES], *([counted(more, "other place")] if more > 0 else [])])
