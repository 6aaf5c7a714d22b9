"""A library may refuse a mistake in any way or give it a meaning, but not be wrong silently."""

import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor

import reference
from properties.catalogue import Op
from properties.jobs import judge
from properties.laws import LAWS, Subject, Violation
from properties.laws.mistakes import Mistake, in_turn, mistakes
from properties.selftest.test_targets import ATTENTION, CPU, PLAIN, some
from properties.simulator import SimulationError
from properties.simulator.errors import Location
from properties.targets import Adapter, Target


class Library(Target):
    """Another library's attention, with its own exceptions."""

    name = "library"
    documented_errors = False

    def __init__(self, accepts: Callable[[Mapping[str, Any]], Any]) -> None:
        self.accepts = accepts

    def function(self, op: Op) -> Any:
        def attention(*, mode: str, tile: int | None, **given: Any) -> Any:
            if mode != "parallel" or tile is not None:
                raise LookupError("neither such a mode nor tiles")
            accepted = self.accepts(given)
            if accepted is not None:
                return accepted
            try:
                return reference.attention(**given)
            except (ValueError, TypeError) as error:
                raise RuntimeError("an error of the library") from error

        return attention


def zeros(given: Mapping[str, Any]) -> tuple[Tensor, None]:
    return torch.zeros_like(given["v"]), None


def is_tensor(value: Any) -> bool:
    return isinstance(value, Tensor)


def nothing(given: Mapping[str, Any]) -> None:
    """The library accepts no bad argument."""


def other_numbers(given: Mapping[str, Any]) -> Any:
    """Windows and scales of other numeric types are accepted as numbers."""
    read = {
        name: given[name].item()
        for name in ("scale", "window")
        if hasattr(given.get(name), "item") and not isinstance(given[name], numpy.float64)
    }
    if isinstance(given.get("window"), float) and given["window"].is_integer():
        read["window"] = int(given["window"])
    return reference.attention(**{**given, **read}) if read else None


def nan_of_nan(given: Mapping[str, Any]) -> Any:
    scale = given.get("scale")
    if isinstance(scale, float) and scale != scale:
        return torch.full_like(given["v"], torch.nan), None
    return None


def values_in_16_bits(given: Mapping[str, Any]) -> Any:
    """The outputs are float32, as the queries are, beside values in 16 bits."""
    v = given["v"]
    if not is_tensor(v) or v.dtype != torch.bfloat16:
        return None
    return reference.attention(**{**given, "v": v.float()})


def zeros_of_nan(given: Mapping[str, Any]) -> Any:
    scale = given.get("scale")
    return zeros(given) if isinstance(scale, float) and scale != scale else None


def window_of_no_keys(given: Mapping[str, Any]) -> Any:
    return zeros(given) if given.get("window") == 0 else None


def half_of_other_numbers(given: Mapping[str, Any]) -> Any:
    read = other_numbers(given)
    return None if read is None else (read[0] / 2, read[1])


def keys_for_no_values(given: Mapping[str, Any]) -> Any:
    return reference.attention(**{**given, "v": given["k"]}) if given["v"] is None else None


def rows_of_integers(given: Mapping[str, Any]) -> Any:
    q = given["q"]
    if not is_tensor(q) or q.is_floating_point():
        return None
    o, lse = reference.attention(**{**given, "q": q.float()})
    return o.int(), lse


def leaves_its_tensors(given: Mapping[str, Any]) -> Any:
    if is_tensor(given["v"]) and given["v"].dim() == 4 and given["v"].shape[1] == 6:
        raise SimulationError("attention_kernel", Location(), "rows that are not there")
    return None


@pytest.mark.parametrize("accepts", [nothing, other_numbers, nan_of_nan, values_in_16_bits])
def test_a_library_may_raise_anything_or_be_right(accepts: Any) -> None:
    assert LAWS["rejection"](ATTENTION, PLAIN, Subject(Library(accepts), CPU)) == 0


@pytest.mark.parametrize(
    ("accepts", "mistake"),
    [
        (window_of_no_keys, "window=0"),
        (zeros_of_nan, "scale=nan"),
        (half_of_other_numbers, r"(window|scale)=\S+"),
        (rows_of_integers, "q of integers"),
        (keys_for_no_values, "v=None"),
        (leaves_its_tensors, "v with S larger by one"),
    ],
)
def test_a_library_may_not_be_wrong_without_a_word(accepts: Any, mistake: str) -> None:
    with pytest.raises(Violation) as info:
        LAWS["rejection"](ATTENTION, PLAIN, Subject(Library(accepts), CPU))
    assert re.match(f"rejection does not hold: {mistake} was not refused, and", str(info.value))


def test_none_is_no_mistake_where_a_library_gives_it_a_meaning() -> None:
    def attention(q: Tensor, k: Tensor, v: Tensor | None = None) -> Tensor:
        return reference.attention(q, k, k if v is None else v)[0]

    case = replace(PLAIN, mode="some", options={})
    subject = Subject(Adapter({"attention": {"some": attention}}), CPU)
    assert judge("rejection", case, subject) == 0


@pytest.mark.parametrize("law", ["splitting", "rejection", "merging"])
def test_a_target_may_return_none_for_a_result_that_it_lacks(law: str) -> None:
    def attention(
        q: Tensor, k: Tensor, v: Tensor, *, causal: bool = False, return_lse: bool = False
    ) -> Any:
        return (*reference.attention(q, k, v, causal=causal, return_lse=return_lse), None)

    target = Adapter({"attention": {"some": attention}})
    case = replace(PLAIN, mode="some", options={"causal": True, "return_lse": False})
    assert judge(law, case, Subject(target, CPU)) is not None


def test_another_mistake_moves_none_of_the_others() -> None:
    each = [*mistakes(ATTENTION, PLAIN, Subject(some(), CPU).inputs(ATTENTION, PLAIN))]
    more = in_turn([Mistake("one more", {}, ()), *each], PLAIN)
    after = [one.what for one in more if one.what != "one more"]
    assert after == [one.what for one in in_turn(each, PLAIN)]


def test_a_mistake_that_is_never_refused_hides_no_other() -> None:
    def careless(given: Mapping[str, Any]) -> Any:
        return window_of_no_keys(given) or zeros_of_nan(given)

    told = set()
    for number in range(0, 64, 8):
        with pytest.raises(Violation) as info:
            LAWS["rejection"](
                ATTENTION, replace(PLAIN, seed=number), Subject(Library(careless), CPU)
            )
        told.add(str(info.value).split()[4])
    assert told == {"window=0", "scale=nan"}


def test_a_mistake_beside_others_is_told_as_often() -> None:
    """A pack in a batch follows bad boundaries, which many libraries take."""
    packed = replace(PLAIN, packed=True, lengths=(3, 2))
    each = [*mistakes(ATTENTION, packed, Subject(some(), CPU).inputs(ATTENTION, packed))]
    groups = {one.group for one in each}
    runs = 20 * len(groups)
    first = Counter(in_turn(each, replace(packed, seed=n))[0].group for n in range(runs))
    assert groups == set(first)
    assert max(first.values()) < 5 * runs / len(groups)


def test_rejection_skips_a_library_that_is_wrong_without_a_mistake() -> None:
    wrong = Library(lambda given: zeros(given) if is_tensor(given["v"]) else None)
    assert LAWS["rejection"](ATTENTION, PLAIN, Subject(wrong, CPU)) == 0


def test_rejection_skips_a_number_that_is_wrong_in_a_legal_type_as_well() -> None:
    """A mistake may make logits larger than those of the case, and a library rounds them."""

    def wrong_from_a_half_on(given: Mapping[str, Any]) -> Any:
        scale = given.get("scale")
        number = isinstance(scale, (int, float, numpy.number)) and 0.5 <= scale < torch.inf
        return zeros(given) if number else None

    assert LAWS["rejection"](ATTENTION, PLAIN, Subject(Library(wrong_from_a_half_on), CPU)) == 0
