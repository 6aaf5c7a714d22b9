"""The comparison of one result with its oracle."""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from properties.verdict.excess import NOT_FINITE, OTHER_SHAPE, Excess


@dataclass(frozen=True)
class Budget:
    """How far a result may be from its oracle.

    Args:
        allowed: largest error by element, float64.
        rule: the reason in a few words, for the report.
        sigma: standard deviation of the error of a correct kernel, if known.
        loss_limit: mean of error/sigma over the tensor above which the loss is systematic.
    """

    allowed: Tensor
    rule: str
    sigma: Tensor | None = None
    loss_limit: float = math.inf

    def joined(self, other: "Budget") -> "Budget":
        """Return a budget that allows the larger of both errors, by element."""
        return replace(self, allowed=torch.maximum(self.allowed, other.allowed))


@dataclass(frozen=True)
class Comparison:
    """The result of a comparison; `passed` decides.

    Args:
        name: of the output.
        reason: empty if it passed, else one clause that says what is wrong.
        ratio: worst error/budget of the finite elements; infinite if a non-finite one is wrong.
        loss: mean of error/sigma over the tensor, over its limit; 0 if sigma is unknown.
        wrong: bool, true where an element is wrong; a scalar if the shape is.
    """

    name: str
    passed: bool
    reason: str
    rule: str
    ratio: float
    loss: float
    wrong: Tensor
    got: Tensor
    want: Tensor
    allowed: Tensor

    @property
    def worst(self) -> tuple[int, ...] | None:
        """Index of the worst element: a wrong non-finite one, else the largest error/budget."""
        if self.got.shape != self.want.shape or not self.got.numel():
            return None
        excess = _excess(self.got, self.want, self.allowed)
        excess = torch.where(self.wrong & ~excess.isfinite(), math.inf, excess.nan_to_num())
        flat = int(excess.argmax())
        return tuple(int(i) for i in torch.unravel_index(torch.tensor(flat), excess.shape))

    @property
    def finite(self) -> bool:
        """Whether the shape is right and every wrong element is finite in both."""
        if self.got.shape != self.want.shape:
            return False
        return bool((self.got.isfinite() & self.want.isfinite())[self.wrong].all())

    @property
    def hopeless(self) -> bool:
        """Whether no budget is wide enough: a NaN, or another shape."""
        if self.got.shape != self.want.shape:
            return True
        return bool((self.got.isnan() | self.want.isnan())[self.wrong].any())

    @property
    def largest(self) -> float:
        """Worst error/budget of the elements that are finite in both."""
        if self.got.shape != self.want.shape:
            return math.inf
        numbers = self.got.isfinite() & self.want.isfinite()
        excess = _excess(self.got, self.want, self.allowed)[numbers]
        return float(excess.max()) if excess.numel() else 0.0

    @property
    def excess(self) -> Excess:
        """How far the result is off."""
        if self.got.shape != self.want.shape:
            return Excess(self.name, OTHER_SHAPE)
        if not self.finite:
            return Excess(self.name, NOT_FINITE)
        error = (self.got.double() - self.want).abs()
        budgeted = self.allowed > 0
        ratio = _most(error[self.wrong & budgeted] / self.allowed[self.wrong & budgeted])
        numbers = torch.stack([self.got.double().abs(), self.want.abs()])
        largest = _most(numbers[numbers.isfinite()])
        of_largest = _most(error[self.wrong & ~budgeted] / largest)
        return Excess(self.name, "", max(ratio, self.loss), of_largest)

    @property
    def fraction_wrong(self) -> float:
        return float(self.wrong.double().mean()) if self.wrong.numel() else 0.0


def _most(x: Tensor) -> float:
    """The largest element, at most the largest number; 0 if there is none."""
    return float(x.nan_to_num().max()) if x.numel() else 0.0


def _excess(got: Tensor, want: Tensor, allowed: Tensor) -> Tensor:
    """error / budget, with 0/0 = 0."""
    error = (got.double() - want).abs()
    return torch.where(error == 0, 0.0, error / allowed)


def compare(name: str, got: Tensor, want: Tensor, budget: Budget | None) -> Comparison:
    """Compare `got` with the oracle's `want`.

    Non-finite elements come first. NaN never passes, not even where the oracle has one. An infinity
    of the oracle must be there with its sign and nowhere else, except where a number within the
    budget rounds to it in the dtype of `got`. Finite elements pass if `|got - want| <= allowed`,
    written so that a NaN fails.

    Args:
        got: the result, any float dtype.
        want: the oracle's result, float64, of the same shape.
        budget: None requires equal bits after rounding `want` to the dtype of `got`. +0 equals -0,
            since the sign of a zero sum depends on the order of its terms.

    Returns:
        The comparison. It does not raise, so that a law can go on to the next output.
    """
    got, want = got.detach().cpu(), want.detach().cpu().double()
    if got.shape != want.shape:
        reason = f"shape {list(got.shape)}, expected {list(want.shape)}"
        # There may be no memory for that many elements, as of an expanded scalar.
        wrong = torch.tensor(True)
        infinite = math.inf
        return Comparison(name, False, reason, "shape", infinite, 0.0, wrong, got, want, want)
    if budget is None:
        want = want.to(got.dtype).double()
        budget = Budget(torch.zeros_like(want), "bit for bit")
    allowed = budget.allowed.cpu().double().expand(want.shape)

    limit = smallest_overflow(got.dtype)
    same_infinity = want.isinf() & (got.double() == want)
    # A number that cancels has a budget that may reach both ends of the range.
    beyond = torch.where(got > 0, want + allowed >= limit, want - allowed <= -limit)
    overflowed = want.isfinite() & got.isinf() & beyond
    both_finite = got.isfinite() & want.isfinite()
    error = (got.double() - want).abs()
    right = same_infinity | overflowed | (both_finite & (error <= allowed))
    wrong = ~right

    finite_ratio = torch.where(both_finite, _excess(got, want, allowed), 0.0)
    ratio = float(finite_ratio.max()) if finite_ratio.numel() else 0.0
    if bool((wrong & ~both_finite).any()) or math.isnan(ratio):
        ratio = math.inf
    loss = _loss(got.double() - want, want, both_finite, budget)
    reason = _reason(got, want, wrong, both_finite, loss)
    return Comparison(name, not reason, reason, budget.rule, ratio, loss, wrong, got, want, allowed)


def smallest_overflow(dtype: torch.dtype) -> float:
    """Return the smallest number that rounds to infinity: half an ulp above the largest, 65520 of
    float16.
    """
    info = torch.finfo(dtype)
    return info.max * (1 + info.eps / 2 / (2 - info.eps))


def incoherent(error: Tensor, want: Tensor) -> Tensor:
    """Remove from each row of an error the part proportional to the result.

    One rounding that many results share (a weight 1/T, say) scales all of them by one factor, which
    is no sign of a loss.
    """
    if not want.ndim:
        return torch.zeros_like(error)
    norm = want.square().sum(-1, keepdim=True)
    share = (error * want).sum(-1, keepdim=True) / torch.where(norm == 0, 1.0, norm)
    return error - share * want


def _loss(error: Tensor, want: Tensor, finite: Tensor, budget: Budget) -> float:
    """Mean of error/sigma over its limit, without elements that cannot have an error."""
    if budget.sigma is None or not math.isfinite(budget.loss_limit):
        return 0.0
    sigma = budget.sigma.cpu().double().expand(error.shape)
    counted = finite & (sigma > 0)
    if not counted.any():
        return 0.0
    error = incoherent(torch.where(finite, error, 0.0), torch.where(finite, want, 0.0))
    return float((error[counted].abs() / sigma[counted]).mean()) / budget.loss_limit


def _reason(got: Tensor, want: Tensor, wrong: Tensor, both_finite: Tensor, loss: float) -> str:
    if bool((wrong & want.isnan()).any()):
        return "NaN on both sides: a number is expected, or the case is outside the domain"
    if bool((wrong & got.isnan()).any()):
        return "NaN where a number is expected"
    if bool((wrong & ~both_finite).any()):
        return "an infinity is missing, has the wrong sign, or is where a number is expected"
    if bool(wrong.any()):
        return "the error exceeds its budget"
    if not loss <= 1:
        return "no element exceeds its budget, but the mean error shows a systematic loss"
    return ""
