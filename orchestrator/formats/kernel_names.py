"""Names of CUDA kernels: the bare function of a demangled name, and which kernels pass data between GPUs."""

from __future__ import annotations

import re

COMMUNICATION = "nccl|rccl|msccl|nvshmem|rocshmem|deep_ep|all_?reduce_kernel|cross_device_reduce"
"""What the names of kernels hold, in any case of letters, that pass data between GPUs and wait for one another:
repeated alone, they wait for ever. NCCL's (ncclKernel, since 2.19 ncclDevKernel), which RCCL has kept; NVSHMEM's; the
all-reduce kernels of PyTorch's symmetric memory and of vLLM; those of DeepEP, which only their namespace tells: by the
function's name alone (`dispatch`, `combine`) they are not known. MPI has no kernels of its own."""

_UNNAMED = re.compile(r"\(anonymous namespace\)|<unnamed>|\{anonymous\}")
_PAIRS = {"<": ">", "(": ")", "[": "]"}
_CALL = re.compile(r"\boperator\(\)")
"""The name of a call, whose brackets begin no parameters."""


def communicates(*names: str | None) -> bool:
    """Whether any of a kernel's names is that of one which passes data between GPUs."""
    return any(re.search(COMMUNICATION, name, re.I) for name in names if name)


def function(demangled: str) -> str:
    """`foo` for `void ns::(anonymous namespace)::foo<(int)4, Bar<float>>(float *, int)`.

    Return type, namespaces, template arguments and parameters go: versions of nsys and ncu spell them differently.
    A name that can't be understood is given back as it is."""
    # NUL stands for what looks like brackets and is none
    name = _CALL.sub("operator\0", _UNNAMED.sub("unnamed", demangled)).replace("->", "\0")
    bare = _outside(name)
    words = bare.replace("::", " ").split() if bare else []
    return words[-1].replace("\0", "()") if words else demangled


def _outside(name: str) -> str | None:
    """What stands outside of brackets, up to the parameters; None when the brackets do not match."""
    kept: list[str] = []
    open_: list[str] = []
    for index, sign in enumerate(name):
        if sign in _PAIRS and not (sign == "<" and name[index - 1 : index] == " "):
            if sign == "(" and not open_:
                return "".join(kept)
            open_.append(_PAIRS[sign])
        elif open_ and sign == open_[-1]:
            open_.pop()
        elif not open_:
            kept.append(sign)
    return None if open_ else "".join(kept)
