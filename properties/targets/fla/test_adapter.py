"""Calls in which an argument means something else to fla, or is not optional there."""

from inspect import signature
from typing import Any

import pytest
import torch

import reference
from properties import scope
from properties.cases.case import Case
from properties.catalogue import OPS
from properties.catalogue.op import Role
from properties.laws import LAWS, Subject
from properties.targets import load
from properties.targets.fla import delta, linear, sums
from properties.targets.fla.implementations import implementations

CASES = {
    "writes that are not given are 1": '{"op":"gdn2","mode":"chunk","dtype":"float32",'
    '"dims":{"B":1,"H":1,"K":9,"V":9},"lengths":[3]}',
    "gates of slots that are not given are 0": '{"op":"gsa","mode":"fused_recurrent",'
    '"dtype":"float32","dims":{"B":1,"H":1,"K":9,"V":9,"M":4},"lengths":[3]}',
    "value heads are channels of one head": '{"op":"gated_delta_rule",'
    '"mode":"fused_recurrent_of_channels","dtype":"float32",'
    '"dims":{"B":2,"G":2,"R":3,"K":5,"V":7},"lengths":[4],"given":["g","beta","initial_state"],'
    '"options":{"output_final_state":true},"context":"no_grad"}',
    "strengths of Comba are required": '{"op":"comba","mode":"chunk","dtype":"float32",'
    '"dims":{"B":1,"G":1,"R":1,"K":9,"V":9},"lengths":[3]}',
    "gates of energies are required": '{"op":"precond_gated_delta_rule","mode":"fused_recurrent",'
    '"dtype":"float32","dims":{"B":1,"H":1,"K":9,"V":9},"lengths":[3],'
    '"options":{"use_qk_l2norm_in_kernel":false}}',
    "gates of PaTH are scaled": '{"op":"path_attn","mode":"parallel","dtype":"float32",'
    '"dims":{"B":1,"G":1,"R":1,"K":16,"V":16},"lengths":[3],"given":["g"],'
    '"float32":["w","beta","g"],"options":{"scale":0.3},"context":"no_grad"}',
    "what lies above a triangle is not read": '{"op":"solve_tril","mode":"fused",'
    '"dtype":"float32","dims":{"B":1,"H":2,"C":32},"lengths":[5,0,40],"packed":true}',
    "products of Parallax are rounded to 16 bits": '{"op":"parallax","mode":"parallel",'
    '"dtype":"bfloat16","dims":{"B":1,"G":1,"R":1,"K":9,"V":9},"lengths":[1],'
    '"values":"large_logits"}',
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_fla_agrees_where_its_arguments_mean_something_else(case: str) -> None:
    one = Case.from_json(case)
    target, device = load("fla", torch.device("cpu")), torch.device("cpu")
    LAWS["differential"](scope.declared(target, one.op, one.mode), one, Subject(target, device))


def test_chunks_of_cyfa_take_odd_values_but_no_odd_keys_in_16_bits() -> None:
    device = torch.device("cpu")
    target = load("fla", device)
    op = scope.declared(target, "cyfa", "chunk")
    odd = '{"op":"cyfa","mode":"chunk","dtype":"float16","dims":{"B":1,"H":1,"K":17,"V":19,"M":15},'
    case = op.settle(Case.from_json(odd + '"lengths":[3]}'))
    assert (case.dims["K"], case.dims["V"]) == (18, 19)
    LAWS["differential"](op, case, Subject(target, device))


def test_keys_of_selected_attention_have_boundaries_of_their_own() -> None:
    load("fla", torch.device("cpu"))
    k, v = torch.randn(2, 1, 7, 1, 16)
    given: dict[str, Any] = {
        "q": torch.randn(1, 5, 16, 16),
        "k": k,
        "v": v,
        "indices": torch.zeros(1, 5, 1, 1, dtype=torch.int32),
        "block_size": 16,
        "cu_seqlens": torch.tensor([0, 3, 5]),
        "cu_seqlens_k": torch.tensor([0, 5, 7]),
    }
    with torch.no_grad():
        o = implementations()[0]["selected_attention"]["parallel"].function(**given)
    torch.testing.assert_close(o, reference.selected_attention(**given)[0])


def test_boundaries_go_to_releases_that_called_them_offsets() -> None:
    def released(s: torch.Tensor, offsets: torch.Tensor | None = None) -> None: ...

    made = sums.MODES["cumsum"]["fused"].implementation(OPS["cumsum"], released)
    assert "cu_seqlens" in signature(made.function).parameters


def test_decoding_refuses_a_window_of_no_keys() -> None:
    """fla documents zeros for such a window."""
    load("fla", torch.device("cpu"))
    x = torch.ones(1, 1, 1, 16)
    decoding = implementations()[0]["attention"]["decoding"].function
    with pytest.raises(ValueError, match="window: 0"):
        decoding(q=x, k=x, v=x, causal=True, window=0, scale=None)


FAMILIES = {**delta.MODES, **linear.MODES}
CHUNKS = [
    (op, mode)
    for op, modes in FAMILIES.items()
    for mode, one in modes.items()
    # The gradient of HGRN's gate is a product.
    if "chunk" in mode and not one.forward_only and op != "hgrn"
]


@pytest.mark.parametrize(("op", "mode"), CHUNKS)
def test_budgets_of_gates_know_that_chunks_sum_over_pairs_of_tokens(op: str, mode: str) -> None:
    """The gradient of the first gate is 0; of a kernel it is what rounding leaves of two sums."""
    case = Case.of(op, mode, dict.fromkeys(OPS[op].dims, 1), (1,))
    known = {telescope.gradient for telescope in FAMILIES[op][mode].telescopes(case)}
    gates = {f"d{a.name}" for a in OPS[op].arguments if a.role is Role.LOG_DECAY}
    assert gates <= known
