"""Which kernels PyTorch may take for attention in this process."""

from __future__ import annotations


def leave_out_cudnn() -> None:
    """Let PyTorch's attention take its other kernels. Idempotent.

    cuDNN, its first choice on Hopper and Blackwell, builds a plan for each new shape of a batch, forward and
    backward about half a second each (https://github.com/modelscope/FunASR/issues/3704), and batches of
    rollouts hardly repeat a shape.
    """
    import torch

    torch.backends.cuda.enable_cudnn_sdp(False)
