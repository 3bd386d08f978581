"""What the names of kernels, calls, ranges and frames mean: families of kernels, kinds of calls, phases of a step.

They are names of libraries, never of the user's functions."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

from orchestrator.formats.kernel_names import communicates
from orchestrator.formats.stacks import is_own, split_frame

BY_STEPS = "the steady steps"
BY_KERNELS = "from the first kernel to the last"
"""What the windows are called that shares are of."""

_FAMILIES = (
    ("attention", r"flash|fmha|attention|sdpa"),
    ("convolution", r"conv|winograd|wgrad|dgrad|fprop|implicit_gemm|scudnn|cudnn::cnn|im2col"),
    ("matrix product", r"gemm|gemv|cutlass|cublas|^Cijk_|_mm_|matmul|nvjet|splitKreduce"),
    ("normalisation", r"norm|bn_(fw|bw)"),
    ("reduction", r"reduce|softmax|argm(ax|in)|cumsum|scan|sort"),
    (
        "elementwise",
        r"elementwise|pointwise|multi_tensor_apply|foreach|CatArrayBatchedCopy|copy_device|dropout|triton_poi|"
        r"fill|scatter|gather|index",
    ),
)
"""Of kernels, by what libraries call them: cuBLAS (nvjet since Hopper), cuDNN, CUTLASS, Tensile (Cijk_), ATen,
Inductor. The first that fits counts: a convolution may be made of an implicit matrix product."""

PRODUCTS = frozenset({"matrix product", "convolution", "attention"})
"""What a GPU is for: being busy with these is a good sign."""

_CALLS = (
    ("launch", r"LaunchKernel|LaunchCooperative|GraphLaunch|cuLaunch|hipLaunch|hipExtModuleLaunch"),
    ("sync", r"(Device|Stream|Event|Ctx)Synchronize"),
    ("copy", r"(cuda|hip)Memcpy|^cuMemcpy"),
    (
        "allocation",
        r"(cuda|hip)(Malloc|Free|HostAlloc|HostRegister)|^cuMem(Alloc|Free|Create|Map|Unmap|Release|HostAlloc)",
    ),
    (
        "loading",
        r"Module(Load|GetFunction|Unload)|Library(Load|GetKernel|GetModule)|cuLink|KernelGetFunction|hiprtc|nvrtc",
    ),
)
"""Of the CUDA and HIP runtimes and drivers."""

BUSY_PART = 1 / 3
"""A gap is put down to an allocation or to loading where one such call takes this part of it."""

ASYNCHRONOUS = re.compile(r"(Async|Prefetch|Peer)")

COLLECTIVE = "communication"
_ACTIVITIES = (
    ("data", r"enumerate\(DataLoader\)|DataLoader\w*\.__next__|torch/utils/data/(dataloader|_utils/)"),
    (COLLECTIVE, r"^(nccl|gloo|mpi|ucc|xccl):|c10d::|torch/distributed/(distributed_c10d|_functional_collectives)"),
    ("backward", r"torch/autograd/|autograd::engine|^backward$"),
    ("optimizer", r"^Optimizer\.(step|zero_grad)#|torch/optim/|^optimizer(_step)?$"),
    ("checkpoint", r"torch/serialization"),
    ("forward", r"torch/nn/modules/module\.py|^forward$|DistributedDataParallel\.forward"),
)
"""What a thread was at, by the names of PyTorch's ranges, operators and files. The first that fits counts."""


@lru_cache(maxsize=1 << 16)
def family(kernel: str) -> str | None:
    """What a kernel computes, as far as its name tells."""
    if communicates(kernel):
        return "communication"
    return next((name for name, words in _FAMILIES if re.search(words, kernel, re.I)), None)


@lru_cache(maxsize=1 << 14)
def call_kind(name: str) -> str | None:
    """What a call of CUDA or HIP is for; None for what takes no part here."""
    return next((kind for kind, words in _CALLS if re.search(words, name)), None)


def waits(call: str) -> bool:
    """Whether the calling thread waits in it for the GPU."""
    return call_kind(call) == "sync" or (call_kind(call) == "copy" and not ASYNCHRONOUS.search(call))


def activity(*words: str | None) -> str | None:
    """The phase of a training step, or COLLECTIVE, that ranges, operators or the frames of a stack tell of."""
    return next((name for name, known in _ACTIVITIES for text in words if text and re.search(known, text)), None)


def to_host(kind: str) -> bool:
    """Whether a kind of copy, under either of the names that nsys has had for it, ends in the host's memory."""
    return kind.endswith(("DtoH]", "Device-to-Host]"))


def own_frame(frames: Iterable[str]) -> str | None:
    """The innermost frame of the program's own code; frames come from the root to the leaf."""
    for frame in reversed([*frames]):
        _, file, _ = split_frame(frame)
        if file and is_own(file) and not file.startswith("<"):
            return frame
    return None
