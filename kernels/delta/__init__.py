"""Delta rules: linear recurrences whose state is corrected where it is read.

`delta_rule.py`, `gated_delta_rule.py`, `kda.py`, `dplr.py` and `rwkv7.py` are what users call.
`kernels.recurrence` makes a `torch.library` op of each and of `forward` and `backward` in
`chunk.py` and `fused_recurrent.py`; `keys.py` normalises keys within it.
"""

from kernels.delta.delta_rule import delta_rule
from kernels.delta.dplr import dplr
from kernels.delta.gated_delta_rule import gated_delta_rule
from kernels.delta.kda import kda
from kernels.delta.rwkv7 import rwkv7

__all__ = ["delta_rule", "dplr", "gated_delta_rule", "kda", "rwkv7"]
