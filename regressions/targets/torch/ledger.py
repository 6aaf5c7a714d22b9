"""Known failures of PyTorch's attention: 2.13 on a CPU, 2.11 (CUDA 13.0, cuDNN 9) on an H200."""

import math

import torch

from properties.cases.case import Case
from properties.laws.mistakes import DTYPE, RANK, SIZES
from properties.targets.ledger import Given, KnownFailure, Raised, Told, Wrong

ON_CPU = ("torch 2.13.0",)
ON_CUDA = ("torch 2.11.0",)
GRADIENTS = ("dq", "dk", "dv")


def _unrefused(*mistakes: str) -> tuple[Told, ...]:
    return tuple(Told(f"{mistake} was not refused") for mistake in mistakes)


def _top_left(given: Given) -> bool:
    """Whether the adapter says is_causal, rather than writing the mask out."""
    masks = ("window", "alibi_slopes", "bias", "mask", "structure")
    masked = any(given.get(name) is not None for name in masks)
    return given["causal"] and not masked and given["q"].shape[1] == given["k"].shape[1]


def _flash(given: Given) -> bool:
    """Whether the CPU's flash kernel runs."""
    bias = given.get("bias")
    trained = bias is not None and bias.requires_grad
    square: bool = given["q"].shape[-1] == given["v"].shape[-1]
    return given["mode"] == "sdpa_flash" or (square and not trained)


def _not_positive(scale: float | None) -> bool:
    return scale is not None and scale != -1 and scale <= 0


def _trains(given: Given) -> bool:
    return any(given[name].requires_grad for name in ("q", "k", "v"))


def _without_keys(given: Given) -> bool:
    """Whether some query of a pack or a batch sees no key."""
    q, k, bounds = given["q"], given["k"], given.get("cu_seqlens")
    if bounds is None:
        return q.shape[1] > k.shape[1]
    keys = bounds if given.get("cu_seqlens_k") is None else given["cu_seqlens_k"]
    return bool((bounds.diff() > keys.diff()).any())


def _without_sequences(given: Given) -> bool:
    bounds = given.get("cu_seqlens")
    return len(given["q"]) == 0 if bounds is None else len(bounds) == 1


def _plain(given: Given) -> bool:
    """Whether the inputs are all of their memory, as their gradients are then as well."""
    tensors = [given[name] for name in ("q", "k", "v")]
    return all(x.is_contiguous() and x.untyped_storage().nbytes() == x.nbytes for x in tensors)


def _sums_per_key(given: Given) -> int:
    """How many blocks of queries are added up in the gradient of one key."""
    queries, heads, groups = given["q"].shape[1], given["q"].shape[2], given["k"].shape[2]
    block = 32 if queries < 192 else 64 if queries < 768 else 256
    return heads // groups * -(-queries // block)


def _largest_logit(given: Given) -> float:
    """An upper bound of the logits' absolute values."""
    scale, q, k = given["scale"], given["q"].detach().double(), given["k"].detach().double()
    factor = q.shape[-1] ** -0.5 if scale is None or scale == -1 else abs(scale)
    if 0 in (q.numel(), k.numel()):
        return 0.0
    return float(factor * q.norm(dim=-1).max() * k.norm(dim=-1).max())


LEDGER = (
    KnownFailure(
        name="flash_scale_not_positive",
        law="differential",
        releases=ON_CPU,
        cases=(
            Case.from_json(
                '{"op":"attention","mode":"sdpa_flash","dtype":"float32","dims":{"B":1,"G":1,"R":1,'
                '"K":1,"V":1},"lengths":[2],"options":{"scale":0.0,"causal":true,"window":null}}'
            ),
        ),
        modes=("sdpa", "sdpa_flash"),
        shows=lambda given: _flash(given) and _top_left(given) and _not_positive(given["scale"]),
        symptoms=(Wrong(("o", *GRADIENTS), most=math.inf, finite=False),),
        expected="[1.0, 1.0]",
        got="[nan, 1.0]",
        cause="is_causal hides keys by -inf before the logits are scaled: -inf times 0 is NaN, and "
        "times a negative scale +inf.",
    ),
    KnownFailure(
        name="flash_gradients_summed_in_16_bits",
        law="differential",
        releases=ON_CPU,
        cases=(
            Case.from_json(
                '{"op":"attention","mode":"sdpa_flash","dtype":"bfloat16","dims":{"B":1,"G":1,"R":3,'
                '"K":8,"V":8},"lengths":[131],"options":{"scale":null,"causal":false,"window":null},'
                '"layout":"expanded"}'
            ),
        ),
        modes=("sdpa", "sdpa_flash"),
        shows=lambda given: (
            _flash(given)
            and _trains(given)
            and given["q"].dtype != torch.float32
            and _sums_per_key(given) > 5
        ),
        symptoms=(Wrong(("dk", "dv"), most=_sums_per_key),),
        expected="512.0",
        got="256.0",
        cause="Gradients of k and v are summed over blocks of queries, and over the heads of a "
        "group, in buffers of 16 bits.",
    ),
    KnownFailure(
        name="nested_all_empty",
        law="differential",
        releases=ON_CPU,
        cases=(
            Case.from_json(
                '{"op":"attention","mode":"sdpa_nested","dtype":"float32","dims":{"B":1,"G":1,"R":1,'
                '"K":1,"V":1},"lengths":[0],"packed":true,"options":{"scale":null}}'
            ),
        ),
        modes=("sdpa_nested",),
        shows=lambda given: 0 in (given["q"].shape[1], given["k"].shape[1]),
        symptoms=(Raised("RuntimeError", "to_padded_tensor: at least one constituent"),),
        expected="[]",
        got="to_padded_tensor: at least one constituent tensor should have non-zero numel",
        cause="The math path goes through a padded tensor, which it refuses to make of sequences "
        "that are all empty.",
    ),
    KnownFailure(
        name="nested_no_sequences",
        law="differential",
        releases=ON_CPU,
        cases=(
            Case.from_json(
                '{"op":"attention","mode":"sdpa_nested","dtype":"float32","dims":{"B":0,"G":1,"R":1,'
                '"K":1,"V":1},"lengths":[1],"options":{"scale":null}}'
            ),
        ),
        modes=("sdpa_nested",),
        shows=_without_sequences,
        symptoms=(Raised("IndexError", "Dimension out of range (expected to be in range of [-1,"),),
        expected="(0, 2, 4)",
        got="Dimension out of range (expected to be in range of [-1, 0], but got 1)",
        cause="The math path turns a jagged tensor into a strided one, which has one axis if it "
        "has no sequences.",
    ),
    KnownFailure(
        name="nested_in_inference_mode",
        law="differential",
        releases=ON_CPU,
        cases=(
            Case.from_json(
                '{"op":"attention","mode":"sdpa_nested","dtype":"float32","dims":{"B":1,"G":1,"R":1,'
                '"K":1,"V":1},"lengths":[1],"options":{"scale":null},"frozen":["q","k","v"],'
                '"context":"inference_mode"}'
            ),
        ),
        modes=("sdpa_nested",),
        shows=lambda given: torch.is_inference_mode_enabled(),
        symptoms=(Raised("RuntimeError", "Cannot set version_counter for inference tensor"),),
        expected="(4, 8)",
        got="Cannot set version_counter for inference tensor",
        cause="A jagged tensor is a view of its values, and in inference mode no such view is made "
        "of a tensor from outside.",
    ),
    KnownFailure(
        name="nested_gradient_at_an_offset",
        law="differential",
        releases=ON_CPU,
        cases=(
            Case.from_json(
                '{"op":"attention","mode":"sdpa_nested","dtype":"float32","dims":{"B":1,"G":1,"R":1,'
                '"K":1,"V":1},"lengths":[1],"options":{"scale":null},"layout":"misaligned"}'
            ),
        ),
        modes=("sdpa_nested",),
        shows=lambda given: _trains(given) and not _plain(given),
        symptoms=(
            Wrong(GRADIENTS, most=math.inf, finite=False),
            Raised("RuntimeError", "split_with_sizes expects split_sizes to sum exactly to"),
        ),
        expected="[5.0, 5.0, 7.0, 7.0]",
        got="[1.0, 1.0, 3.0, 3.0]",
        cause="The backward of values() of a strided nested tensor reads the gradient from the "
        "start of its storage, wherever in it the gradient lies.",
    ),
    KnownFailure(
        name="nested_logits_in_16_bits",
        law="differential",
        releases=ON_CPU,
        cases=(
            Case.from_json(
                '{"op":"attention","mode":"sdpa_nested","dtype":"bfloat16","dims":{"B":1,"G":1,"R":1,'
                '"K":3,"V":1},"lengths":[2],"options":{"scale":null},"values":"large_logits"}'
            ),
        ),
        modes=("sdpa_nested",),
        shows=lambda given: given["q"].dtype != torch.float32 and _largest_logit(given) > 2,
        symptoms=(Wrong(("o", *GRADIENTS), most=_largest_logit),),
        expected="0.7",
        got="0.5",
        cause="The math path computes in float32 for dense tensors of 16 bits, and not for nested "
        "ones, whose logits are rounded.",
    ),
    KnownFailure(
        name="flex_nan_of_another_sequence",
        law="packing",
        releases=ON_CPU,
        cases=(
            Case.from_json(
                '{"op":"attention","mode":"flex","dtype":"float32","dims":{"B":1,"G":1,"R":1,"K":1,'
                '"V":1},"lengths":[1,1],"packed":true,"options":{"scale":null,"causal":false,'
                '"window":null,"softcap":null,"return_lse":true}}'
            ),
        ),
        modes=("flex",),
        shows=lambda given: "cu_seqlens" in given and bool(given["v"].isnan().any()),
        symptoms=(Wrong(("o", "lse"), finite=False),),
        expected="[1.0, nan]",
        got="[nan, nan]",
        cause="Values that a mask hides are multiplied by a weight of 0, which a NaN survives.",
    ),
    KnownFailure(
        name="flex_no_keys",
        law="differential",
        releases=ON_CPU,
        cases=(
            Case.from_json(
                '{"op":"attention","mode":"flex","dtype":"float32","dims":{"B":1,"G":1,"R":1,"K":1,'
                '"V":1},"lengths":[0],"packed":true,"options":{"scale":null,"causal":false,'
                '"window":null,"softcap":null,"return_lse":true}}'
            ),
        ),
        modes=("flex",),
        shows=lambda given: given["k"].shape[1] == 0,
        symptoms=(
            Raised("IndexError", "max(): Expected reduction dim 3 to have non-zero size."),
            # A score_mod comes before the maximum.
            Raised("IndexError", "select(): index 0 out of range for tensor of size"),
        ),
        expected="[0.0, 0.0]",
        got="max(): Expected reduction dim 3 to have non-zero size.",
        cause="The eager path takes a maximum of the scores over no keys.",
    ),
    KnownFailure(
        name="flex_no_queries",
        law="differential",
        releases=ON_CPU,
        cases=(
            Case.from_json(
                '{"op":"attention","mode":"flex","dtype":"float32","dims":{"B":1,"G":1,"R":1,"K":1,'
                '"V":1},"lengths":[0],"key_lengths":[3],"packed":true,"given":["alibi_slopes"],'
                '"options":{"scale":null,"causal":false,"window":null,"softcap":null,'
                '"return_lse":false}}'
            ),
        ),
        modes=("flex",),
        shows=lambda given: given["q"].shape[1] == 0,
        symptoms=(Raised("IndexError", "select(): index 0 out of range for tensor of size"),),
        expected="(1, 1, 0, 4)",
        got="select(): index 0 out of range for tensor of size [0] at dimension 0",
        cause="The eager path evaluates score_mod and mask_mod at index 0 of an axis without any.",
    ),
    KnownFailure(
        name="flex_lookup_beside_an_empty_axis",
        law="differential",
        releases=ON_CPU,
        cases=(
            Case.from_json(
                '{"op":"attention","mode":"flex","dtype":"float32","dims":{"B":0,"G":1,"R":1,"K":1,'
                '"V":1},"lengths":[2],"given":["bias"],"options":{"scale":null,"causal":false,'
                '"window":null,"softcap":null,"structure":null,"return_lse":false}}'
            ),
            Case.from_json(
                '{"op":"attention","mode":"flex","dtype":"float32","dims":{"B":1,"G":2,"R":1,"K":1,'
                '"V":1},"lengths":[0],"key_lengths":[5],"given":["mask"],"options":{"scale":null,'
                '"causal":false,"window":null,"softcap":null,"structure":null,"return_lse":false}}'
            ),
            Case.from_json(
                '{"op":"attention","mode":"flex","dtype":"float32","dims":{"B":0,"G":1,"R":1,"K":1,'
                '"V":1},"lengths":[0],"given":["mask"],"options":{"scale":null,"causal":false,'
                '"window":null,"softcap":null,"structure":null,"return_lse":false}}'
            ),
        ),
        modes=("flex",),
        shows=lambda given: (
            0 in (len(given["q"]), given["q"].shape[1])
            and any(given.get(name) is not None for name in ("bias", "mask", "structure"))
        ),
        symptoms=(
            Raised(
                "IndexError",
                "shape mismatch: indexing tensors could not be broadcast together with shapes [",
            ),
            Raised("RuntimeError", "*bdim < tensor.dim() INTERNAL ASSERT FAILED at"),
        ),
        expected="(0, 1, 2, 4)",
        got="shape mismatch: indexing tensors could not be broadcast together with shapes "
        "[0], [2, 1], [2]",
        cause="The eager path maps score_mod and mask_mod by vmap, whose rule for indexing leaves "
        "an index without elements as it is beside those of other axes.",
    ),
    KnownFailure(
        name="flex_lse_of_no_rows",
        law="differential",
        releases=ON_CPU,
        cases=(
            Case.from_json(
                '{"op":"attention","mode":"flex","dtype":"float32","dims":{"B":0,"G":1,"R":1,"K":1,'
                '"V":1},"lengths":[2],"options":{"scale":null,"causal":false,"window":null,'
                '"softcap":null,"return_lse":true}}'
            ),
        ),
        modes=("flex",),
        shows=lambda given: bool(given.get("return_lse")) and 0 in given["q"].shape[:3],
        symptoms=(Raised("TypeError", "it returns no lse, expected o, lse"),),
        expected="(0, 1, 2)",
        got="None",
        cause="Without elements of the output there is an early return, of no LSE.",
    ),
    KnownFailure(
        name="scale_not_finite",
        law="rejection",
        releases=ON_CPU,
        cases=(
            Case.from_json(
                '{"op":"attention","mode":"sdpa_flash","dtype":"float32","dims":{"B":1,"G":1,"R":1,"K":1,"V":1},"lengths":[3],"options":{"scale":null,"causal":false,"window":null}}'
            ),
        ),
        modes=("sdpa", "sdpa_flash", "sdpa_math", "sdpa_nested", "flex"),
        shows=lambda given: isinstance(given["scale"], float) and not math.isfinite(given["scale"]),
        symptoms=_unrefused("scale=nan", "scale=inf", "scale=-inf"),
        expected="[nan, nan]",
        got="[0.0, 0.0]",
        cause="Logits of NaN or -inf alone make a row that sees no key.",
    ),
    KnownFailure(
        name="math_sizes_beside_no_keys",
        law="rejection",
        releases=ON_CPU,
        cases=(
            Case.from_json(
                '{"op":"attention","mode":"sdpa_math","dtype":"float32","dims":{"B":1,"G":1,"R":1,"K":16,"V":16},"lengths":[3],"key_lengths":[0],"options":{"scale":null,"causal":false,"window":null}}'
            ),
        ),
        modes=("sdpa", "sdpa_math", "sdpa_flash"),
        shows=lambda given: 0 in (given["q"].shape[1], given["k"].shape[1]),
        symptoms=_unrefused(SIZES, RANK, "more heads of keys than of queries"),
        expected="an exception",
        got="(1, 1, 2, 2)",
        cause="Without keys nothing is multiplied, and nobody compares the widths of q and k.",
    ),
    KnownFailure(
        name="flex_integers",
        law="rejection",
        releases=ON_CPU,
        cases=(
            Case.from_json(
                '{"op":"attention","mode":"flex","dtype":"float32","dims":{"B":1,"G":1,"R":1,"K":16,"V":16},"lengths":[3],"options":{"scale":null,"causal":false,"window":null,"softcap":null,"return_lse":false}}'
            ),
        ),
        modes=("flex",),
        shows=lambda given: not given["q"].is_floating_point(),
        symptoms=_unrefused(DTYPE),
        expected="an exception",
        got="torch.int32",
        cause="The output has the dtype of the queries, integers too: it is cut off.",
    ),
    KnownFailure(
        name="cuda_flash_scale_not_positive",
        law="differential",
        releases=ON_CUDA,
        cases=(
            Case.from_json(
                '{"op":"attention","mode":"sdpa_flash","dtype":"float16","dims":{"B":1,"G":1,"R":2,'
                '"K":9,"V":9},"lengths":[1],"options":{"scale":0.0,"causal":false},"seed":1}'
            ),
        ),
        modes=("sdpa", "sdpa_flash", "varlen"),
        shows=lambda given: _not_positive(given["scale"]),
        symptoms=(Wrong(("o", "lse", *GRADIENTS), most=math.inf, finite=False),),
        expected="1.0",
        got="nan",
        cause="Hidden keys, those that fill the last tile too, are -inf before the logits are "
        "scaled.",
        devices=("cuda",),
    ),
    KnownFailure(
        name="cuda_cudnn_scale_not_positive",
        law="differential",
        releases=ON_CUDA,
        cases=(
            Case.from_json(
                '{"op":"attention","mode":"sdpa_cudnn","dtype":"bfloat16","dims":{"B":1,"G":2,"R":2,'
                '"K":8,"V":8},"lengths":[7],"options":{"scale":-0.5,"causal":false,"window":null},'
                '"values":"late_maximum","seed":3810}'
            ),
        ),
        modes=("sdpa", "sdpa_cudnn"),
        shows=lambda given: _not_positive(given["scale"]),
        symptoms=(Wrong(("o", *GRADIENTS), most=math.inf, finite=False),),
        expected="1.0",
        got="nan",
        cause="As in the flash kernel, in cuDNN's.",
        devices=("cuda",),
    ),
    KnownFailure(
        name="cuda_cudnn_row_without_keys",
        law="differential",
        releases=ON_CUDA,
        cases=(
            Case.from_json(
                '{"op":"attention","mode":"sdpa_cudnn","dtype":"bfloat16","dims":{"B":1,"G":1,"R":2,'
                '"K":32,"V":32},"lengths":[4],"key_lengths":[3],"options":{"scale":null,"causal":true,'
                '"window":1},"values":"late_maximum","layout":"expanded","seed":2952}'
            ),
        ),
        modes=("sdpa", "sdpa_cudnn"),
        shows=lambda given: given["q"].shape[1] > given["k"].shape[1],
        symptoms=(Wrong(("o", *GRADIENTS), most=math.inf),),
        expected="[0.0, 1.0]",
        got="[1.0, 1.0]",
        cause="A mask becomes a bias of a large negative number, and a row of nothing but that is "
        "a softmax over keys that are all hidden.",
        devices=("cuda",),
    ),
    KnownFailure(
        name="cuda_varlen_lse_without_keys",
        law="differential",
        releases=ON_CUDA,
        cases=(
            Case.from_json(
                '{"op":"attention","mode":"varlen","dtype":"float16","dims":{"B":2,"G":2,"R":1,'
                '"K":256,"V":256},"lengths":[85],"key_lengths":[65],"options":{"scale":-1,'
                '"causal":true,"window":null,"return_lse":true},"values":"extreme_gates",'
                '"seed":19476}'
            ),
        ),
        modes=("varlen",),
        shows=_without_keys,
        symptoms=(Wrong(("lse",), finite=False),),
        expected="-inf",
        got="inf",
        cause="lse of a row without keys is +inf, so that the backward's exp(s - lse) is 0.",
        devices=("cuda",),
    ),
    KnownFailure(
        name="cuda_cudnn_float32_mask",
        law="differential",
        releases=ON_CUDA,
        expected="[0.0, 0.0]",
        got="[3.703125, 3.0]",
        cause="A float32 mask passes the checks, and cuDNN reads it as one of the dtype of q.",
        devices=("cuda",),
    ),
    KnownFailure(
        name="cuda_unaligned",
        law="layout_invariance",
        releases=ON_CUDA,
        expected="True",
        got="False",
        cause="cuDNN's kernel takes addresses for multiples of 16 bytes, and nothing checks them.",
        devices=("cuda",),
    ),
    KnownFailure(
        name="cuda_flash_unaligned",
        law="layout_invariance",
        releases=ON_CUDA,
        expected="1.0",
        got="CUDA error: misaligned address",
        cause="The same in the flash kernel, after which the process has no device.",
        devices=("cuda",),
    ),
)
