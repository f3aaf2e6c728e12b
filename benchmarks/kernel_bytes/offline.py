"""Triton kernels compiled to machine code for a generation of GPUs, without one, and what they take of it."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import triton
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import get_ptxas
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction


class Machine(NamedTuple):
    """What a compiled kernel takes."""

    registers: int
    """Registers of a thread."""
    spilt_bytes: int
    """Stores to local memory of a thread, as registers do not suffice."""
    shared_bytes: int
    """Shared memory of a program."""
    ptx: str


def compiled(
    kernel: JITFunction,
    kinds: Mapping[str, str],
    values: Mapping[str, Any],
    *,
    generation: int,
    num_warps: int = 4,
    aligned: tuple[str, ...] = (),
    fuse: bool = False,
) -> Machine:
    """Machine code of a kernel for sm_80 or sm_90.

    Args:
        kernel: Kernel to compile.
        kinds: Triton's name of the type of each argument, "constexpr" for those known when it is compiled.
        values: The values of those.
        generation: 80 or 90.
        num_warps: Warps of a program.
        aligned: Arguments that are multiples of 16, as a launch finds them.
        fuse: Whether multiplications and additions may be fused.
    """
    target = GPUTarget("cuda", generation, 32)
    attributes = {(kernel.arg_names.index(name),): [["tt.divisibility", 16]] for name in aligned}
    made = triton.compile(
        ASTSource(fn=kernel, signature=dict(kinds), constexprs=dict(values), attrs=attributes),
        target=target,
        options={"num_warps": num_warps, "enable_fp_fusion": fuse},
    )
    assert made.asm["cubin"], kernel
    ptxas = get_ptxas(generation) if get_ptxas.__code__.co_argcount else get_ptxas()
    with tempfile.TemporaryDirectory(prefix="wirewise-ptx-") as folder:
        source = Path(folder) / "kernel.ptx"
        source.write_text(made.asm["ptx"])
        command = [ptxas.path, "-v", f"--gpu-name=sm_{generation}{'a' if generation == 90 else ''}", source,
                   "-o", source.with_suffix(".out")]  # fmt: skip
        told = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stderr
    (registers,), (stores,) = (
        re.findall(r"Used (\d+) registers", told),
        re.findall(r"(\d+) bytes spill stores", told),
    )
    return Machine(int(registers), int(stores), made.metadata.shared, made.asm["ptx"])
