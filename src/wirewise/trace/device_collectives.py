"""Detection of an accelerator's communication kernels, by their names and launching operators.

Names are those of the libraries' sources and of public traces. A kernel that reduces within one device, such as a
`blockAllReduce`, is not detected.
"""

from __future__ import annotations

import re
from typing import NamedTuple

__all__ = ["collective_of_kernel", "family_of_kernel", "family_of_operator", "may_communicate"]


class _Family(NamedTuple):
    name: str
    kernels: str
    """Pattern of names of kernels; empty: none are known."""
    operators: str = ""
    """Pattern of names of operators of the host that launch them."""


_FAMILIES = (
    # ncclDevKernel_, ncclKernel_, ncclSymkDevKernel_, those of NVLink SHARP; rcclGenericKernel, mscclKernel_ of RCCL.
    _Family("NCCL", r"[nr]ccl|mscclKernel", r"^(nccl|rccl)::"),
    _Family("MSCCL++", r"mscclpp", r"mscclpp"),
    _Family(
        "symmetric memory",
        r"multimem|(one|two)_?shot_(all_?)?reduce|symm(etric)?_?mem|(put|wait)_signal_kernel",
        r"^symm_mem::|^_?c10d::.*symm",
    ),
    # vLLM, SGLang and AITER have one origin; quick all-reduce is AMD's for the same use.
    _Family(
        "custom all-reduce",
        r"cross_device_(reduce|store|load)|quick_?reduce|allreduce_prototype|custom_all_?reduce",
        r"custom_ar::|(vllm|sgl_kernel|sglang|aiter)::.*(all_?(reduce|gather|to_?all)|reduce_?scatter)|qr_all_reduce",
    ),
    _Family(
        "TensorRT-LLM",
        r"(one|two)shot_?all_?reduce|all_?reduce_?fusion|lamport|moe_?alltoall|userbuffers",
        r"(trtllm|tensorrt_llm|flashinfer)::.*(all_?(reduce|gather|to_?all)|reduce_?scatter)",
    ),
    # Kernels that Triton makes of calls of NVSHMEM have their names without its own.
    _Family(
        "NVSHMEM",
        r"(nv|roc|i|x)_?shmemx?i?_|nvshmem|rocshmem|(?<![a-z])(put|get)mem_|barrier_all(?![a-z])",
        r"nvshmem|rocshmem",
    ),
    _Family(
        "DeepEP",
        r"deep_?ep::(?!layout)|internode(_ll)?::|intranode::|pplx|(?<![a-z0-9])a2av?_\w*(dispatch|combine)",
        r"deep_?ep::|pplx::",
    ),
    # MORI of AMD and UCCL are for experts, as DeepEP is; HCCL names its operators hcom_.
    _Family(
        "other libraries",
        r"\b(hccl|mccl|oneccl|xccl|eccl)|HcclAll|ccl_kernel|ub_stream_recv|gloo|\bhcom_|(?<![a-z])(mori|uccl|nixl)(_|::)",
        r"^(mori|uccl|nixl)(_\w+)?::",
    ),
    # A name that tells it, of whatever library.
    _Family(
        "collectives by name",
        r"all_?reduce|all_?gather(?!_copy)|reduce_?scatter|all_?(to|2)_?all|(?<![a-z0-9])a2av?(?![a-z0-9])|nvls|"
        r"multi_?cast_?(reduce|store)",
        r"^(_?c10d(_functional)?)::(all|reduce_scatter|_?reduce_scatter|broadcast|send|recv|scatter|gather|barrier)",
    ),
)
_KERNELS = [(family.name, re.compile(family.kernels, re.IGNORECASE)) for family in _FAMILIES]
_OPERATORS = [(one.name, re.compile(one.operators, re.IGNORECASE)) for one in _FAMILIES if one.operators]
_WITHIN = re.compile(
    r"(block|warp|wave|cta|cluster|thread|lane|quad|simd|cub)_?(::)?\w*_?(all_?reduce|reduce)|"
    r"triton_(poi|per|red|tem|for)_fused",
    re.IGNORECASE,
)
"""Names of sums within one device, and of fused kernels, which tell all operators that they come from."""
_TOLD = (
    (
        re.compile(
            r"cross_device_reduce|quick_?reduce|allreduce_prototype|shot_reduce|lamport", re.IGNORECASE
        ),
        "all_reduce",
    ),
    (
        re.compile(
            r"(deep_?ep|internode|intranode|pplx|a2a|all2all|mori|uccl).*(dispatch|combine)", re.IGNORECASE
        ),
        "all_to_all",
    ),
)
"""Collectives of kernels whose names say it in other words."""
_HINTS = re.compile(
    r"peer|remote|p2p|\bipc|signal_pad|inter_?(node|gpu|device)|multi_?(gpu|device|node)|cross_?(gpu|rank|device)|"
    r"nvlink|rdma|ibgda|fabric|_rank\b|(wait|set)_flag",
    re.IGNORECASE,
)


def family_of_kernel(name: str) -> str:
    """Library of a communication kernel, by its name; empty for other kernels."""
    found = next((family for family, pattern in _KERNELS if pattern.search(name)), "")
    return "" if found == _FAMILIES[-1].name and _WITHIN.search(name) else found


def family_of_operator(name: str) -> str:
    """Library of a communicating operator, whose own kernels communicate; empty for other operators."""
    return next((family for family, pattern in _OPERATORS if pattern.search(name)), "")


def may_communicate(name: str) -> bool:
    """Whether a kernel of no known library has a name suggesting multi-device access."""
    return _HINTS.search(name) is not None


def collective_of_kernel(name: str) -> str:
    """Collective executed by a kernel, by its library's naming; empty if unknown."""
    return next((collective for pattern, collective in _TOLD if pattern.search(name)), "")
