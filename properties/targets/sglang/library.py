"""SGLang's kernels, without its server."""

from properties.targets.bare import Answers, Bare, Settings

_SGLANG = Bare(
    "sglang",
    folders=("sglang.kernels.ops.attention", "sglang.srt.layers.attention.triton_ops"),
    install="pip install --no-deps sglang",
    stand_ins={
        "sglang.srt.utils": Answers("sglang.srt.utils"),
        "sglang.srt.environ": Settings("sglang.srt.environ"),
    },
)
kernel = _SGLANG.function
