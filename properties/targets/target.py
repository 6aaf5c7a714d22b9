"""What a target is: an implementation of the catalogue, or of a part of it."""

from collections.abc import Mapping

from properties.cases.case import Case
from properties.catalogue.op import Function, Op


class Target:
    """An implementation of the whole catalogue; a target that has less of it says so.

    Args:
        name: what `--target` calls it.
        bitwise: it promises the same bits for the same numbers whatever their layout, what they are
            packed with and what else a call asks for. Otherwise such results are held to the error
            budget.
        new_results: what it returns are contiguous tensors that share no memory with its inputs,
            but for a result that is asked for in place.
        documented_errors: it refuses bad arguments with the errors that the catalogue documents,
            before any launch. Otherwise it may raise anything, or be right.
        chooses: its ops take the mode "auto" as well, and choose one then.
        contexts: what its calls may run in, of `properties.cases.contexts`.
    """

    name = ""
    bitwise = True
    chooses = False
    new_results = True
    documented_errors = True
    contexts: tuple[str, ...] = ("grad", "no_grad", "inference_mode")

    def modes(self, op: Op) -> tuple[str, ...]:
        """Its kernels of the op, by name; none where it does not have the op."""
        return tuple(mode.name for mode in op.modes)

    def declaration(self, op: Op, mode: str) -> Op:
        """The op as this kernel has it; cases are drawn from that and laws read it."""
        return op

    def unstated(self, op: Op, mode: str) -> Mapping[str, str]:
        """Laws of the op that cannot be stated for this kernel → why."""
        return {}

    def limits(self, op: Op, mode: str) -> tuple[str, ...]:
        """What cases of this kernel keep to, besides what its declaration lacks."""
        return ()

    def conventions(self, op: Op, mode: str) -> tuple[str, ...]:
        """Where its meaning differs from the catalogue's, and is translated."""
        return ()

    def function(self, op: Op) -> Function:
        """The op, callable as the oracle is, with `mode` and `tile` besides."""
        raise NotImplementedError

    def architectures(self, case: Case) -> tuple[str, ...]:
        """Others than its own that the device can claim to be, where that changes the tiles."""
        return ()

    def tiles(self, case: Case) -> Mapping[int, int]:
        """Entries of the tile table that the case can take → tokens per tile."""
        return {}

    def tokens(self, op: str, mode: str) -> int:
        """Tokens per tile of a kernel without a table; lengths are drawn next to its multiples."""
        return 16
