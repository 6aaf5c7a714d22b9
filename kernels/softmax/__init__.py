"""Attention by a softmax over keys, or by another function of each score.

Pages that users call, and the kernels that each launches:

- `attention.py`: `forward.py` and `backward.py`; `wide.py` for head dims above 256, `gates.py` for
  the forget gate, `structure.py` for masks, biases and rules of positions. `mla.py` and
  `differential.py` call it.
- `paged.py`: `paged_forward.py`. It shares the walk of a tree, `tree.py`, with `structure.py`.
- `selected.py`: `selection.py`. `moba.py`, `dsa.py`, `msa.py` and `nsa.py` select blocks by
  `select.py` and attend to them here; `nsa.py` also calls `attention`.
- `sigmoid_attention.py`, `parallax.py` and `polynomial.py`: `weighted.py`.
- `path.py`: `path_spans.py` and `path_walk.py`, each with a file for its backward pass.
- `wall.py`: `wall_walk.py` and `wall_backward.py`.
- `merge.py`, `attnres.py`, `deltaformer.py` and `stickbreaking.py`: their own.

`pairs.py` makes the public functions of most of them, and `arguments.py` checks what they share.
Kernels share `logits.py`, and `chunked.py` where a program walks over chunks of keys. Launches
share `launch.py`, and `ranges.py`, which divides cotangents in float16.
"""
