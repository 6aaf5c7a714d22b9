"""Caches and rotary embeddings of a target, which may keep tensors."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from properties.device import activate, calling
from properties.laws import Subject
from properties.suite.caches.adapted import AdaptedMachine
from properties.suite.caches.machine import run, variant
from properties.suite.layers.adapted import Scaling, check, scalings
from properties.targets import load


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    option = metafunc.config.getoption
    target = load(option("oracles_target"), activate(option("oracles_device")))
    if "cache" in metafunc.fixturenames:
        metafunc.parametrize("cache", tuple(target.caches))
    if "rotary" in metafunc.fixturenames:
        each = [(name, kind) for name, make in target.rotary.items() for kind in scalings(make)]
        ids = [
            f"{name}-{kind if isinstance(kind, str) else kind['rope_type']}" for name, kind in each
        ]
        metafunc.parametrize(("rotary", "kind"), each, ids=ids)


def test_a_cache_in_any_order_of_calls(cache: str, subject: Subject) -> None:
    kind = staticmethod(subject.target.caches[cache])
    with calling():
        run(variant(AdaptedMachine, subject.device, kind=kind))


# An example takes some milliseconds, and few calls have fewer tokens than those before them.
@settings(max_examples=100)
@given(data=st.data())
def test_a_rotary_embedding_makes_the_tables_of_its_scaling(
    data: st.DataObject, rotary: str, kind: Scaling, subject: Subject
) -> None:
    with calling():
        check(data, subject.target.rotary[rotary], kind, subject.device)
