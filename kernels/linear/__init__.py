"""Linear attention, gated or not: one recurrence, in several modes.

    S_t = diag(exp g_t) S_{t-1} diag(exp gv_t) + k_t v_tᵀ,    o_t = scale · S_tᵀ q_t

`linear_attn.py`, `gla.py` and `simple_gla.py` are ops with these modes: `kernels.recurrence` makes
a `torch.library` op of each and of `forward` and `backward` in `chunk.py`, `fused_chunk.py`,
`fused_recurrent.py` and `parallel.py`. `hgrn.py`, `feature_maps.py` and `log_linear_attn.py`, with
`log_linear_chunk.py`, have kernels of their own. The other pages call one of these ops;
`normalize.py` and `log_weights.py` compute what several of them need before and after the call. A
mode has

    forward(q, k, v, g, *, scale, initial_state, cu_seqlens, tile, output_final_state, out_dtype)
        -> (o, final_state | None)
    backward(q, k, v, g, *, scale, initial_state, cu_seqlens, tile, do, dfinal_state, keys_dtype,
        values_dtype)
        -> (dq, dk, dv, dg | None, dinitial_state | None)

- q, k `[B, T, H, K]`, v `[B, T, H, V]` of one dtype; g `[B, T, H, K]`, or `[B, T, H]` where all
  channels of a head share it, of that dtype or float32, or None for no decay. Any stride, 0 too.
  K is 1 to 256, V is 1 to 257: `normalize` adds a channel to v.
- scale is a resolved float. initial_state `[N, H, K, V]` float32, any stride, or None for zeros.
- cu_seqlens `[N+1]`, int32 or int64, its values already checked, or None. B and T may be 0.
- tile is an entry (a `kernels.tiles.Entry`) of the row `TABLE[op, mode]`.
- o `[B, T, H, V]` in `out_dtype`: v's dtype, or float32 under `normalize`, so that the quotient is
  rounded once. final_state `[N, H, K, V]` float32, None unless `output_final_state`.
- do has o's shape, any stride, and o's dtype or v's; dfinal_state `[N, H, K, V]` float32, or None.
- dq, dk are in `keys_dtype`, float32 where heads are summed afterwards, dv in `values_dtype`,
  float32 where a wrapper goes on with it, and dg in the dtype of g; dg None without g,
  dinitial_state None without initial_state. Nothing is saved between the two: backward recomputes
  the states that it needs.

`fused_recurrent` takes `gv` (after g) and `reverse` besides and returns `dgv` after `dg`;
`fused_chunk` and `parallel` have no gates per key channel.
"""
