"""vLLM's kernels, without its server."""

import logging
from enum import IntEnum
from types import ModuleType

import torch
import triton
from triton import language as tl

from properties.targets.bare import Answers, Bare, Settings


class Quantization(IntEnum):
    """The kinds of 8-bit caches, by vLLM's numbers."""

    NONE = 0
    FP8_PER_TENSOR = 1
    INT8_PER_TOKEN_HEAD = 2
    FP8_PER_TOKEN_HEAD = 3
    INT4_PER_TOKEN_HEAD = 4


def _module(name: str, **members: object) -> ModuleType:
    made = ModuleType(name)
    vars(made).update(members)
    return made


class Logger(logging.Logger):
    """A logger as vLLM's, which also says something once."""

    def warning_once(self, message: str, *rest: object) -> None:
        self.debug(message, *rest)


VLLM = Bare(
    "vllm",
    folders=("vllm.v1.attention.ops", "vllm.attention.ops"),
    install="put vllm of its source distribution on PYTHONPATH",
    stand_ins={
        "vllm._custom_ops": _module("vllm._custom_ops"),
        "vllm.envs": Settings("vllm.envs"),
        "vllm.logger": _module("vllm.logger", init_logger=Logger),
        "vllm.model_executor.layers.batch_invariant": _module(
            "vllm.model_executor.layers.batch_invariant", vllm_is_batch_invariant=lambda: False
        ),
        "vllm.platforms": _module(
            "vllm.platforms",
            current_platform=Answers("current_platform", fp8_dtype=torch.float8_e4m3fn),
        ),
        "vllm.platforms.rocm": _module(
            "vllm.platforms.rocm",
            on_gfx1x=lambda: False,
            use_rocm_custom_paged_attention=lambda *_, **__: False,
        ),
        "vllm.triton_utils": _module("vllm.triton_utils", triton=triton, tl=tl),
        "vllm.v1.kv_cache_interface": _module(
            "vllm.v1.kv_cache_interface", KVQuantMode=Quantization
        ),
    },
)
