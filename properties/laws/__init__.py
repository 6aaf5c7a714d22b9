"""The laws, one file each."""

from properties.laws import (
    batch_invariance,
    causality,
    context_invariance,
    determinism,
    differential,
    exactness,
    large_calls,
    layout_invariance,
    linearity,
    merging,
    packing,
    permutation,
    plumbing,
    rejection,
    request_invariance,
    scale_equivariance,
    splitting,
    untouched_inputs,
    written_outputs,
)
from properties.laws.law import Law, Run, Subject, Violation

LAWS: dict[str, Law] = {
    module.LAW.name: module.LAW
    for module in (
        differential,
        exactness,
        causality,
        splitting,
        packing,
        permutation,
        linearity,
        scale_equivariance,
        layout_invariance,
        context_invariance,
        request_invariance,
        determinism,
        batch_invariance,
        merging,
        plumbing,
        untouched_inputs,
        written_outputs,
        rejection,
        large_calls,
    )
}

__all__ = ["LAWS", "Law", "Run", "Subject", "Violation"]
