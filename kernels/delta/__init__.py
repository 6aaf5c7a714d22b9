"""Delta rules: linear recurrences whose state is corrected where it is read.

`delta_rule.py`, `gated_delta_rule.py`, `kda.py` and `dplr.py` are what users call.
`kernels.recurrence` makes a `torch.library` op of each and of `forward` and `backward` in
`chunk.py` and `fused_recurrent.py`; `keys.py` normalizes keys within it. `mesa_net.py`,
`momentum_delta_rule.py` and `ttt_linear.py` have kernels of their own, `gated_delta_product.py`
calls `gated_delta_rule`, `titans.py` calls `momentum_delta_rule`, and the others call `dplr`, the
most general of them.
"""
