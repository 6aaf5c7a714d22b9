"""How far a wrong result is off, in few words and in the order of gravity."""

from dataclasses import dataclass, field

NOT_FINITE, OTHER_SHAPE = "not finite", "of another shape"


@dataclass(frozen=True, order=True)
class Excess:
    """How far a wrong result is off; the larger of two is the graver.

    Every number is finite, so that it can be written as JSON.

    Args:
        output: name of the result.
        beyond: what no number tells, `NOT_FINITE` or `OTHER_SHAPE`; empty if `ratio` or
            `of_largest` does.
        ratio: error over budget of the worst element, or the mean error over its limit; 0 if only
            elements are wrong that have a budget of 0, as where bits must agree.
        of_largest: error of the worst of these over the largest number of both results.
    """

    output: str = field(compare=False)
    beyond: str = ""
    ratio: float = 0.0
    of_largest: float = 0.0

    def told(self, output: str) -> str:
        """In few words, with the name of the result unless it is the one that a line names."""
        name = f"{self.output} " if self.output != output else ""
        if self.beyond:
            return f"{name}{self.beyond}"
        if self.ratio:
            return f"{name}up to {self.ratio:.3g} x its budget"
        return f"{name}up to {self.of_largest:.3g} of its largest at budget 0"
