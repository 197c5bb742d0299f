"""The trainer `megatron_train` on megatron-core: tensor, pipeline, context, expert and data parallelism."""

import warnings

# Megatron warns of each library of fused kernels that is missing; the trainer asks it to do without them.
warnings.filterwarnings(
    "ignore", message=".*(Apex|Transformer Engine).*not installed", module=r"megatron\.core"
)
# Of its own default and of its own calls, which are not ours to change.
warnings.filterwarnings("ignore", message="full scope is deprecated", module=r"megatron\.core")
warnings.filterwarnings("ignore", message=".*_(into|scatter)_tensor` is deprec", category=FutureWarning)
