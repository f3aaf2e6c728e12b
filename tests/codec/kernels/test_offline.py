"""Every Triton kernel compiles to machine code for A100 and H100, without a GPU, and keeps its values in registers."""

from __future__ import annotations

from typing import Any

import pytest

from tests.benchmarks.test_benchmarks import load
from tests.harness.tiers import spread

pytest.importorskip("triton", reason="triton is not installed")

from triton.runtime.jit import JITFunction

from wirewise.codec.gradients.kernels import gpu_codes
from wirewise.codec.kernels import triton_gpu

pytestmark = [pytest.mark.slow, pytest.mark.triton]

KINDS = {
    triton_gpu: {
        "*i64": "index_ptr order_ptr rows_ptr bad_ptr offset_ptr slot_ptr indptr_ptr indices_ptr",
        "*u8": "codes_ptr buffer_ptr bits_ptr",
        "i64": "key",
        "fp32": "factor",
    },
    gpu_codes: {
        "*i64": "table_ptr ids_ptr count_ptr bad_ptr",
        "*fp64": "low_ptr high_ptr",
        "fp32": "share most limit largest scale",
        "i64": "key",
    },
}
"""Types of arguments, by module; other pointers are of float32, other numbers int32."""
FLAGS = dict.fromkeys(("STOCHASTIC", "INDEXED", "HELD", "KEEP"), True)
FLAGS |= dict.fromkeys(("TRACED", "ADD", "MOVE"), False)
CODES = {"out_ptr": "*u8", "zeros_ptr": "*u8", "steps_ptr": "*u8"}
PACKED = FLAGS | CODES | {"ZERO_BYTES": 4, "PAIRED": True, "num_warps": 2}
WIDE = FLAGS | {"ROWS": 8, "BLOCK": 256, "HELD": 1}
BYTES = FLAGS | {"out_ptr": "*u8"}
VARIANTS: list[tuple[Any, str, dict[str, Any]]] = [
    *(
        (triton_gpu, "_pack_kernel", PACKED | {"BITS": bits, "ROWS": rows, "BLOCK": 256, "BLOCK_BYTES": size})
        for bits, rows, size in ((8, 8, 128), (4, 8, 128), (2, 16, 64), (1, 16, 32))
    ),
    (triton_gpu, "_pack_kernel", PACKED | {"BITS": 2, "PAIRED": False, "ROWS": 4, "BLOCK": 1024, "BLOCK_BYTES": 256}),
    *(
        (triton_gpu, "_unpack_kernel", FLAGS | {"zeros_ptr": "*u8", "steps_ptr": "*u8", "ZERO_BYTES": 4, "BITS": bits,
                                                "ADD": bits == 2, "ROWS": rows, "BLOCK_BYTES": size})
        for bits, rows, size in ((8, 8, 256), (4, 16, 128), (2, 16, 64), (1, 16, 32))
    ),
    (triton_gpu, "_pack_kernel", PACKED | {"BITS": 4, "HELD": False, "ROWS": 1, "BLOCK": 4096, "BLOCK_BYTES": 4096,
                                           "num_warps": 8}),
    (triton_gpu, "_pack_wide_kernel", WIDE | {"out_ptr": "*i16"}),
    (triton_gpu, "_pack_wide_kernel", WIDE | {"out_ptr": "*i32"}),
    (triton_gpu, "_pack_wide_kernel", WIDE | {"out_ptr": "*i32", "HELD": 0, "ROWS": 1, "BLOCK": 2048, "num_warps": 8}),
    (triton_gpu, "_unpack_wide_kernel", WIDE | {"codes_ptr": "*i16"}),
    (triton_gpu, "_unpack_wide_kernel", WIDE | {"codes_ptr": "*i32", "ADD": True}),
    *(
        (triton_gpu, "_pack_wide_kernel", WIDE | {"out_ptr": kind, "HELD": 16, "ROWS": 1, "BLOCK": 2048,
                                                  "num_warps": 16})
        for kind in ("*i16", "*i32")
    ),
    *(
        (triton_gpu, "_pack_kernel", PACKED | {"BITS": bits, "PAIRED": paired, "ROWS": 1, "BLOCK": 4096,
                                               "BLOCK_BYTES": size, "num_warps": warps})
        for bits, paired, size, warps in (
            (8, True, 8192, 16), (4, True, 8192, 16), (2, False, 4096, 8), (1, False, 2048, 8), (1, True, 1024, 4)
        )
    ),
    *(
        (triton_gpu, "_aggregate_kernel", {"WIDTHS": widths, "PLANES": planes, "BLOCK": size, "num_warps": warps})
        for widths, planes, size, warps in (
            (4, 2, 128, 2), (2, 4, 64, 1), (1, 8, 32, 1), (8, 1, 256, 4), (32, 1, 256, 4), (2 + 4 + 8, 4, 64, 1),
            (2 + 4 + 8, 1, 1024, 8), (63, 8, 128, 2), (63, 1, 1024, 8),
        )
    ),
    (gpu_codes, "block_peaks", FLAGS | {"out_ptr": "*i32", "BLOCK": 4096}),
    (gpu_codes, "block_sums", FLAGS | {"out_ptr": "*fp64", "SQUARE": True, "BLOCK": 4096}),
    (gpu_codes, "block_halves", FLAGS | {"BLOCK": 4096}),
    (gpu_codes, "write_cast", FLAGS | {"out_ptr": "*fp16", "BLOCK": 4096}),
    (gpu_codes, "write_cast", FLAGS | {"out_ptr": "*i16", "BLOCK": 4096}),
    (gpu_codes, "add_cast", {"rows_ptr": "*i16", "ROWS": 2, "BLOCK": 4096}),
    (gpu_codes, "write_signs", BYTES | {"low_ptr": "*fp32", "high_ptr": "*fp32", "BYTES": 512}),
    (gpu_codes, "write_ternary", BYTES | {"BYTES": 1024}),
    (gpu_codes, "write_codes", BYTES | {"OWN": True, "DRAWN": True, "BITS": 8, "BYTES": 256, "most": "i32"}),
    (gpu_codes, "write_codes", BYTES | {"OWN": True, "DRAWN": False, "BITS": 4, "BYTES": 128, "most": "i32"}),
    (gpu_codes, "add_planes", {"rows_ptr": "*u8", "low_ptr": "*fp32", "high_ptr": "*fp32", "ROWS": 2, "BITS": 1,
                               "BYTES": 512}),
    (gpu_codes, "add_codes", {"rows_ptr": "*u8", "ROWS": 2, "OWN": True, "BITS": 4, "BYTES": 128}),
    (gpu_codes, "compensate", {"BLOCK": 1024}),
]  # fmt: skip


def signature(
    module: Any, kernel: JITFunction, variant: dict[str, Any]
) -> tuple[dict[str, str], dict[str, Any]]:
    """Types of the arguments of a kernel, and the values of those that are known when it is compiled."""
    named = {name: kind for kind, names in KINDS[module].items() for name in names.split()}
    kinds, values = {}, {}
    for name in kernel.arg_names:
        if name.isupper():
            kinds[name], values[name] = "constexpr", variant[name]
        else:
            kinds[name] = variant.get(name, named.get(name, "*fp32" if name.endswith("_ptr") else "i32"))
    return kinds, values


@pytest.mark.parametrize("generation", [80, 90])
def test_kernels_compile_and_do_not_spill(generation: int, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = load(monkeypatch, "offline", "kernel_bytes").compiled
    spilt, told = [], {name for _, name, _ in VARIANTS}
    # What spills on the one spills on the other, which has as many registers: each is compiled for one of them.
    for module, name, variant in spread(VARIANTS, 2, generation // 90):
        kernel = getattr(module, name)
        kinds, values = signature(module, kernel, variant)
        made = compiled(kernel, kinds, values, generation=generation, num_warps=variant.get("num_warps", 4))
        assert "fma.rn" not in made.ptx, name
        spilt += [(name, variant)] if made.spilt_bytes else []
    assert not spilt
    kernels = {
        name
        for module in KINDS
        for name, value in vars(module).items()
        if isinstance(value, JITFunction) and (name.endswith("_kernel") or name in module.__all__)
    }
    assert kernels - {"mix32", "row_key_of"} <= told
