"""Delta rules: linear recurrences whose state is corrected where it is read.

`delta_rule.py`, `gated_delta_rule.py`, `kda.py` and `dplr.py` are what users call.
`kernels.recurrence` makes a `torch.library` op of each and of `forward` and `backward` in
`chunk.py` and `fused_recurrent.py`; `keys.py` normalises keys within it. `mesa_net.py`,
`momentum_delta_rule.py` and `ttt_linear.py` have kernels of their own, `gated_delta_product.py`
calls `gated_delta_rule`, `titans.py` calls `momentum_delta_rule`, and the others call `dplr`, the
most general of them.
"""

from kernels.delta.comba import comba
from kernels.delta.delta_rule import delta_rule
from kernels.delta.dplr import dplr
from kernels.delta.gated_delta_product import gated_delta_product
from kernels.delta.gated_delta_rule import gated_delta_rule
from kernels.delta.gated_oja_rule import gated_oja_rule
from kernels.delta.gdn2 import gdn2
from kernels.delta.iplr import iplr
from kernels.delta.kda import kda
from kernels.delta.mesa_net import mesa_net
from kernels.delta.momentum_delta_rule import momentum_delta_rule
from kernels.delta.precond import precond_gated_delta_rule, precond_kda
from kernels.delta.rwkv7 import rwkv7
from kernels.delta.titans import titans
from kernels.delta.ttt_linear import ttt_linear

__all__ = [
    "comba",
    "delta_rule",
    "dplr",
    "gated_delta_product",
    "gated_delta_rule",
    "gated_oja_rule",
    "gdn2",
    "iplr",
    "kda",
    "mesa_net",
    "momentum_delta_rule",
    "precond_gated_delta_rule",
    "precond_kda",
    "rwkv7",
    "titans",
    "ttt_linear",
]
