"""The kernel under the name and signature of `reference.simple_gla`."""

from kernel import scalar_decay

from attention_oracles import Adapter, Implementation


def simple_gla(q, k, v, g=None, *, scale=None, output_final_state=False):
    scale = q.shape[-1] ** -0.5 if scale in (None, -1) else scale
    g = q.new_zeros(q.shape[:-1]) if g is None else g
    o, state = scalar_decay(q, k, v, g, scale)
    return o, state if output_final_state else None


def target(device):
    caller = "the caller checks"
    mine = Implementation(simple_gla, forward_only=True, unstated={"rejection": caller})
    return Adapter({"simple_gla": {"fused_recurrent": mine}})
