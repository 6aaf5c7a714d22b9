"""A flipped sign in a reference page is noticed by its tests and by its second form."""

from collections.abc import Iterator

import pytest

from properties.planting.edit import Edit
from properties.planting.trial import TestAt, TrialPool

_AGREE = "properties/selftest/test_oracles.py::test_second_form_agrees_with_the_first_in_float64"

LINEAR_ATTN = ("reference/linear/test_linear_attn.py", f"{_AGREE}[linear_attn]")
GLA = ("reference/linear/test_gla.py", f"{_AGREE}[gla]")
ATTENTION = ("reference/softmax/test_attention.py", f"{_AGREE}[attention]")
MERGE = ("reference/softmax/test_merge.py", f"{_AGREE}[merge_attention]")
ROTARY = ("reference/position/test_rotary.py", f"{_AGREE}[rotary_embedding]")
TABLES = ("reference/position/test_tables.py",)
SIMPLE_GLA = ("reference/linear/test_simple_gla.py",)
CONSTANT = ("reference/linear/test_constant_decay.py",)
MAMBA2 = ("reference/linear/test_mamba2.py",)
MAMBA3 = ("reference/linear/test_mamba3.py",)
DELTA = ("reference/delta/test_delta_rule.py",)
GATED_DELTA = ("reference/delta/test_gated_delta_rule.py",)
KDA = ("reference/delta/test_kda.py",)
DPLR = ("reference/delta/test_dplr.py",)
RWKV7 = ("reference/delta/test_rwkv7.py",)
CONV = ("reference/conv/test_short_conv.py",)
L2NORM = ("reference/norm/test_l2norm.py",)
# Comparing the forms cannot test what they share; a page with one form has only its tests.
SHARED = LINEAR_ATTN[:1]
SCALE = ("reference/test_scale.py",)
CACHES = ("reference/cache/test_caches.py",)

_linear, _gla = "reference.linear.linear_attn", "reference.linear.gla"
_softmax, _rotary = "reference.softmax.attention", "reference.position.rotary"
_tables = "reference.position.tables"
_delta = "reference.delta"
FLIPPED = {
    Edit(_linear, "S = S + torch", "S = S - torch"): LINEAR_ATTN,
    Edit(_linear, "scale * o, S + torch", "scale * o, S - torch"): LINEAR_ATTN,
    Edit(_gla, "torch.exp(g[:, t, :, :, None])", "torch.exp(-g[:, t, :, :, None])"): GLA,
    Edit("reference.decay", "torch.exp(between)", "torch.exp(-between)"): GLA,
    Edit(_softmax, "s - slope[:, None, None] *", "s + slope[:, None, None] *"): ATTENTION,
    Edit(_softmax, "s - slope[:, None] *", "s + slope[:, None] *"): ATTENTION,
    Edit("reference.softmax.merge", "top + torch.log", "top - torch.log"): MERGE,
    Edit("reference.softmax.merge", "torch.sigmoid(-x)", "torch.sigmoid(x)"): MERGE,
    Edit(_rotary, "y1 = x1 * cos - x2 * sin", "y1 = x1 * cos + x2 * sin"): ROTARY,
    Edit(_rotary, "z = z * factor", "z = z * -factor"): ROTARY,
    Edit(_tables, "base ** (-2 * pair", "base ** (2 * pair"): TABLES,
    Edit(_tables, "factor ** (-torch", "factor ** (torch"): TABLES,
    Edit(_tables, "(1 - ramp) * θ + ramp", "(1 - ramp) * θ - ramp"): TABLES,
    Edit(_tables, "smooth * θ + (1 - smooth)", "smooth * θ - (1 - smooth)"): TABLES,
    Edit(_tables, "float64) / rotary_dim + γ)", "float64) / rotary_dim - γ)"): TABLES,
    Edit("reference.linear.simple_gla", "S = S + torch", "S = S - torch"): SIMPLE_GLA,
    Edit("reference.linear.simple_gla", "* S + written", "* S - written"): SIMPLE_GLA,
    Edit("reference.linear.constant_decay", "1 - 2.0 **", "1 + 2.0 **"): CONSTANT,
    Edit("reference.linear.constant_decay", "math.exp(-8", "math.exp(8"): CONSTANT,
    Edit("reference.linear.constant_decay", "decay * S + torch", "decay * S - torch"): CONSTANT,
    Edit("reference.linear.constant_decay", "start * S + torch", "start * S - torch"): CONSTANT,
    Edit("reference.linear.mamba2", "torch.exp(dt[:, t]", "torch.exp(-dt[:, t]"): MAMBA2,
    Edit("reference.linear.mamba2", "y = M @ X + from", "y = M @ X - from"): MAMBA2,
    Edit("reference.linear.mamba3", "(h.mT, -turns", "(h.mT, turns"): MAMBA3,
    Edit("reference.linear.mamba3", "(h.mT, -angles", "(h.mT, angles"): MAMBA3,
    Edit(f"{_delta}.delta_rule", "v[:, t] - known", "v[:, t] + known"): DELTA,
    Edit(f"{_delta}.delta_rule", "V - K @ S", "V + K @ S"): DELTA,
    Edit(f"{_delta}.triangular", "L.to(dtype)", "-L.to(dtype)"): DELTA,
    Edit(f"{_delta}.gated_delta_rule", "v[:, t] - known", "v[:, t] + known"): GATED_DELTA,
    Edit(f"{_delta}.gated_delta_rule", "V - (d * K)", "V + (d * K)"): GATED_DELTA,
    Edit(f"{_delta}.kda", "v[:, t] - known", "v[:, t] + known"): KDA,
    Edit(f"{_delta}.kda", "residual = v - torch", "residual = v + torch"): KDA,
    Edit(
        f"{_delta}.dplr",
        'S = S + torch.einsum("bhk,bhv->bhkv", b',
        'S = S - torch.einsum("bhk,bhv->bhkv", b',
    ): DPLR,
    Edit(f"{_delta}.dplr", "-torch.nn", "torch.nn"): DPLR,
    Edit(f"{_delta}.rwkv7", "S = S - torch", "S = S + torch"): RWKV7,
    Edit(f"{_delta}.rwkv7", "torch.exp(w)) - kk", "torch.exp(w)) + kk"): RWKV7,
    Edit("reference.conv.short_conv", "y + bias", "y - bias"): CONV,
    Edit("reference.conv.short_conv", "z + bias", "z - bias"): CONV,
    Edit("reference.norm.l2norm", "keepdim=True) + eps", "keepdim=True) - eps"): L2NORM,
    Edit("reference.linear.normalize", '["v"], 1.0)', '["v"], -1.0)'): SHARED,
    Edit("reference.scale", "key_dim**-0.5", "key_dim**0.5"): SCALE,
    Edit("reference.cache.kv", "forgotten[n] += surplus", "forgotten[n] -= surplus"): CACHES,
    Edit("reference.cache.recurrent", "[s + c for", "[s - c for"): CACHES,
}


@pytest.fixture(scope="module")
def trials() -> Iterator[TrialPool]:
    with TrialPool("oracle", "auto") as trials:
        yield trials


@pytest.mark.parametrize(
    ("edit", "node"),
    [
        pytest.param(edit, node, id=f"{edit.after}-by-{node.rpartition('/')[2]}")
        for edit, nodes in FLIPPED.items()
        for node in nodes
    ],
)
def test_flipped_sign_is_noticed(edit: Edit, node: str, trials: TrialPool) -> None:
    outcome = trials.submit(TestAt(node), edit).result()
    assert outcome.caught_by is not None, outcome.report
