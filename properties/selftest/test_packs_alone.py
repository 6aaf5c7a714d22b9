"""Kernels that take packs alone are judged as those that take batches."""

from typing import Any

import pytest
import torch
from hypothesis import Phase, given, seed, settings
from torch import Tensor

import reference
from properties import scope
from properties.cases.case import Case
from properties.cases.extents import ORDINARY
from properties.cases.strategies import cases
from properties.catalogue import OPS, Op
from properties.jobs import judge
from properties.laws import LAWS, Subject, Violation
from properties.selftest.test_targets import ATTENTION, CPU
from properties.targets import Adapter


def packs_alone(op: Op, calls: list[int], *, one_sequence: bool = False) -> Adapter:
    """The oracle of an op, which refuses a batch; or one that takes a pack for one sequence."""

    def attention(
        q: Tensor, k: Tensor, v: Tensor, *, cu_seqlens: Tensor, cu_seqlens_k: Tensor,
        scale: float | None = None, causal: bool = False, g: Tensor | None = None,
        return_lse: bool = False,
    ) -> Any:  # fmt: skip
        calls.append(len(cu_seqlens) - 1)
        assert cu_seqlens[-1] == q.shape[1]
        assert cu_seqlens_k[-1] == k.shape[1]
        bounds = {"cu_seqlens": cu_seqlens, "cu_seqlens_k": cu_seqlens_k}
        options = {"scale": scale, "causal": causal, "g": g, "return_lse": return_lse}
        return op.oracle(q, k, v, **options, **({} if one_sequence else bounds))

    def gla(
        q: Tensor, k: Tensor, v: Tensor, g: Tensor | None = None, *, cu_seqlens: Tensor,
        initial_state: Tensor | None = None, output_final_state: bool = False,
    ) -> Any:  # fmt: skip
        calls.append(len(cu_seqlens) - 1)
        assert cu_seqlens[-1] == q.shape[1]
        rest = {"initial_state": initial_state, "output_final_state": output_final_state}
        return op.oracle(q, k, v, g, cu_seqlens=None if one_sequence else cu_seqlens, **rest)

    some: dict[str, Any] = {"attention": attention, "gla": gla}
    return Adapter({op.name: {"some": some[op.name]}})


@pytest.mark.parametrize("name", ["attention", "gla"])
@pytest.mark.parametrize("law", sorted(set(LAWS) - {"rejection"}))
def test_a_kernel_that_takes_packs_alone_is_judged_by_every_law(name: str, law: str) -> None:
    calls: list[int] = []
    target = packs_alone(OPS[name], calls)
    if law not in scope.laws(target, name, "some"):
        pytest.skip(f"{name} has no such law")
    op, subject = scope.declared(target, name, "some"), Subject(target, CPU, quick=True)

    @seed(0)
    @settings(max_examples=10, database=None, deadline=None, phases=[Phase.generate])
    @given(cases(op, op.modes[0], "float32", target, longest=8, widest=4, extents=ORDINARY))
    def look(case: Case) -> None:
        judge(law, case, subject)

    look()
    assert max(calls) > 1


@pytest.mark.parametrize("name", ["attention", "gla"])
def test_rows_without_tokens_make_a_pack(name: str) -> None:
    calls: list[int] = []
    dims = dict.fromkeys(OPS[name].dims, 2)
    drawn = Case.of(name, "some", dims, (0,), "float32")
    judge("differential", drawn, Subject(packs_alone(OPS[name], calls), CPU, quick=True))
    assert calls[0] == 2


def test_a_row_that_reads_its_neighbour_in_the_pack_is_noticed() -> None:
    target = packs_alone(OPS["attention"], [], one_sequence=True)
    dims = {"B": 2, "G": 1, "R": 1, "K": 2, "V": 2}
    drawn = Case.of("attention", "some", dims, (3,), "float32", options={"causal": True})
    with pytest.raises(Violation, match="differential"):
        judge("differential", drawn, Subject(target, CPU, quick=True))


def test_a_kernel_that_takes_packs_alone_says_so_and_has_no_mask() -> None:
    def with_mask(
        q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor, mask: Tensor | None = None
    ) -> Any:
        raise NotImplementedError

    assert "a batch is the pack of its rows" in "".join(
        scope.missing(packs_alone(ATTENTION, []), ops=["attention"])
    )
    told = r"parameter 'mask', expected none beside 'cu_seqlens' without a default"
    with pytest.raises(ValueError, match=told):
        Adapter({"attention": {"some": with_mask}})


def test_tensors_of_different_batches_make_no_pack() -> None:
    function: Any = packs_alone(ATTENTION, []).function(ATTENTION)
    q, k = torch.ones(2, 3, 1, 4), torch.ones(1, 6, 1, 4)
    with pytest.raises(ValueError, match=r"k: shape \(1, 6, 1, 4\), expected B=2"):
        function(q=q, k=k, v=k, mode="some", tile=None)


def test_a_result_too_many_of_a_pack_is_refused() -> None:
    def attention(q: Tensor, k: Tensor, v: Tensor, *, cu_seqlens: Tensor) -> Any:
        return (*reference.attention(q, k, v, cu_seqlens=cu_seqlens), q)

    target = Adapter({"attention": {"some": attention}})
    dims = {"B": 2, "G": 1, "R": 1, "K": 2, "V": 2}
    drawn = Case.of("attention", "some", dims, (3,), "float32")
    with pytest.raises(Violation, match="it returns 3 results, expected o alone"):
        judge("differential", drawn, Subject(target, CPU, quick=True))
