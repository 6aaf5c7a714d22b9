"""The modules that an op is made of."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from hypothesis import settings

from properties.catalogue import DECLARING
from properties.catalogue.op import Op
from properties.jobs import Job
from properties.planting.closure import KERNELS, closure, digest, origin_of


@dataclass(frozen=True)
class OpModules:
    """The modules that an op is made of; no kernels while it has none."""

    kernels: frozenset[str]
    reference: frozenset[str]
    declaration: str

    @classmethod
    def of(cls, op: Op) -> "OpModules":
        return cls(
            closure(kernels_of(op), lists=False),
            closure(oracles_of(op), lists=False),
            DECLARING[op.name],
        )

    def of_own(self, modules: Iterable[str]) -> "OpModules":
        """Return the op with the kernels of other modules, and of all that these import."""
        return replace(self, kernels=closure(modules, lists=False))

    @property
    def modules(self) -> frozenset[str]:
        """Modules whose mutants belong to the op."""
        return self.kernels | self.reference

    def code(self, job: Job) -> str:
        """A digest of the code that determines a job's cases and what they run."""
        law = f"properties.laws.{job.law}"
        suite = {"properties.cases.strategies", law, self.declaration}
        code = digest(*suite, *self.kernels, *self.reference, lists=False)
        return f"{code} {job.share(settings.get_profile('ci').max_examples)}"

    @property
    def oracle(self) -> str:
        """A digest of the code that determines the oracle's results and budgets."""
        budgets = {"properties.laws.expect", self.declaration}
        return digest(*budgets, *self.reference, lists=False)


def kernels_of(op: Op) -> frozenset[str]:
    """The module of the op's function in `kernels`; none while it has no kernel."""
    return frozenset([origin_of(KERNELS, op.name)] if op.modes else ())


def oracles_of(op: Op) -> frozenset[str]:
    """The modules of the forms of the op's oracle."""
    return frozenset(f.__module__ for f in (op.oracle, op.second_form, op.quiet_form))
