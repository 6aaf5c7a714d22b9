"""Targets: implementations of all or part of the catalogue."""

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any

from properties.cases.case import Case
from properties.cases.contexts import CONTEXTS
from properties.cases.values import COTANGENTS
from properties.catalogue import OPS
from properties.catalogue.op import Function, Op
from properties.targets.modules import Caches, Rotaries
from properties.verdict.exceptions import message_of


class Target:
    """An implementation of the whole catalogue; subclasses may declare less.

    Attributes:
        name: as for `--target`.
        bitwise: equal numbers give equal bits whatever their layout, packing and requested outputs.
            Otherwise such results are held to the error budget.
        new_results: outputs are contiguous tensors that share no memory with inputs or with each
            other, except in-place results.
        documented_errors: bad arguments raise the catalogue's errors before any launch. Otherwise
            the target may raise anything, or be right.
        takes_auto: its ops also take the mode "auto" and choose one.
        contexts: the supported ones of `properties.cases.contexts`.
        remarks: sentences about what this release lacks.
        cotangents: names of `properties.cases.values.COTANGENTS`; with other than ordinary ones
            intermediate results leave the range of float16.
        caches, rotary: name → class or function that makes a cache of keys and values, or a rotary
            embedding with tables of its own, see `properties.targets.modules`.
    """

    name = ""
    bitwise = True
    takes_auto = False
    new_results = True
    documented_errors = True
    remarks: tuple[str, ...] = ()
    contexts: tuple[str, ...] = ("grad", "no_grad", "inference_mode")
    cotangents: tuple[str, ...] = ("ordinary",)
    caches: Caches = MappingProxyType({})
    rotary: Rotaries = MappingProxyType({})

    def chooses_by_count(self, op: Op, case: Case) -> bool:
        """Whether it takes other tiles for one sequence than for all of a case, so that bits may
        differ."""
        return False

    def modes(self, op: Op) -> tuple[str, ...]:
        """Names of its kernels of the op; empty if it lacks the op."""
        return tuple(mode.name for mode in op.modes)

    def declaration(self, op: Op, mode: str) -> Op:
        """The op as this kernel has it, from which cases are drawn."""
        return op

    def unstated(self, op: Op, mode: str) -> Mapping[str, str]:
        """Laws of the op that do not apply to this kernel → why."""
        return {}

    def limits(self, op: Op, mode: str) -> tuple[str, ...]:
        """Restrictions on cases of this kernel, besides what its declaration lacks."""
        return ()

    def conventions(self, op: Op, mode: str) -> tuple[str, ...]:
        """Say where its conventions differ from the catalogue's, and are translated."""
        return ()

    def function(self, op: Op) -> Function:
        """The op, callable like the oracle, with `mode` and `tile` as well."""
        raise NotImplementedError

    def architectures(self, case: Case) -> tuple[str, ...]:
        """Other architectures that the device can report, if they change the tiles."""
        return ()

    def tiles(self, case: Case) -> Mapping[int, int]:
        """The tile table's entries that the case can use → tokens per tile, 0 if unknown."""
        return {}

    def tokens(self, op: str, mode: str) -> int:
        """Tokens per tile of a kernel without a table, 0 if unknown; lengths are drawn next to its
        multiples.
        """
        return 16

    def check(self) -> None:
        """Check what it states, as runs begin with that.

        Raises:
            ValueError: an attribute or the answer of a method has another type or unknown names, or
                the method raises an error.
        """
        _expect_texts("remarks", self.remarks)
        _expect_texts("contexts", self.contexts, CONTEXTS)
        _expect_texts("cotangents", self.cotangents, COTANGENTS)
        for op in OPS.values():
            modes = self._stated("modes", op)
            for mode in modes:
                self._stated("limits", op, mode)
                self._stated("conventions", op, mode)
                self._stated("declaration", op, mode, kind=Op)
                unstated = self._stated("unstated", op, mode, kind=Mapping)
                _expect_texts(f"unstated of {op.name} ({mode})", (*unstated, *unstated.values()))

    def _stated(self, method: str, op: Op, *mode: str, kind: type = tuple) -> Any:
        where = " ".join([f"{method} of {op.name}", *map("({})".format, mode)])
        try:
            stated = getattr(self, method)(op, *mode)
        except Exception as error:
            told = f"{type(error).__name__}: {message_of(error)}"
            raise ValueError(f"target: {where}: {told}") from error
        if kind is tuple:
            _expect_texts(where, stated)
        elif not isinstance(stated, kind):
            raise ValueError(f"target: {where}: {stated!r}, expected {kind.__name__}")
        return stated


def _expect_texts(where: str, stated: object, known: Collection[str] | None = None) -> None:
    if not (isinstance(stated, tuple) and all(isinstance(text, str) for text in stated)):
        raise ValueError(f"target: {where}: {stated!r}, expected a tuple of texts")
    if known is not None and (not stated or not {*stated} <= {*known}):
        raise ValueError(f"target: {where}: {stated!r}, expected some of {', '.join(known)}")
