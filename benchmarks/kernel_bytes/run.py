"""V3: what each Triton kernel takes of a GPU and the bytes that it moves over those that it must move, without a GPU.

    python benchmarks/kernel_bytes/run.py --preset smoke|paper [--out FILE.md] [--only ROW,...]

Rows: `messages` (rows of a matrix quantized, unpacked and aggregated), `gradients` (codecs of gradients). Each row runs
its operations in Triton's interpreter and counts the bytes of all loads and stores under their masks; then each variant
that was launched is compiled for sm_80 and sm_90, with the alignments of that launch.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import msgspec

from common import Page, arguments, verdict

if TYPE_CHECKING:
    from offline import Machine

HERE = Path(__file__).resolve().parent
GENERATIONS = (80, 90)
MOST = 1.05
"""Bytes moved over bytes that must be moved, at most."""
_ALL = [8, 4, 2, 1, 16, 32]
_MIXED = [2, 4, 8]
"""Bit widths of messages of one buffer, in turns."""
_BLOCKS = [(name, {}) for name in ("int8", "int4")]
_CODECS = [
    *((name, {}) for name in ("fp16", "bf16", "efsign", "signsgd", "signum", "onebit", "terngrad")),
    ("qsgd", {"levels": 64}),
    *_BLOCKS,
    *((name, {"rounding": "stochastic"}) for name, _ in _BLOCKS),
    ("dgc", {"ratio": 0.01, "momentum": 0.9}),
]
PRESETS: dict[str, dict[str, Any]] = {
    "smoke": {"messages": (4096, {64: [8, 2, 32]}), "gradients": (16384, _CODECS[2:3])},
    "paper": {
        "messages": (
            32768,
            {
                256: [*_ALL, _MIXED],
                64: [8, 4, 2, 1],
                602: [8, 4, 2, 1, 16, _MIXED],
                5000: [8, 4, 2, 1, 32],
                20000: [4, 32],
            },
        ),
        "gradients": (65536, _CODECS),
    },
}
ROWS = {
    "messages": "Rows are packed through an index that picks half of a matrix, with stochastic rounding; messages are "
    "added to rows in random order, and aggregated for rows of four entries, each message used once or four times. "
    "`_pack_kernel` reads rows of more than 16,384 columns twice, for their range and for their codes, as values of "
    "longer ones do not fit in registers (no HELD); `_pack_wide_kernel` does so with more than 32,768. "
    "`_aggregate_kernel` reads each byte of a message once for every row that uses it, as different programs sum rows: "
    "with four uses a message is read four times, three of them from a cache that still holds it. Where messages of 1, "
    "2 and 4 bits mix and the planes of one width begin elsewhere than those of the other, as with 602 columns, a byte "
    "is read for each of its codes (PLANES=1). Zero points, steps and places of its messages lie apart, a sector each.",
    "gradients": "Gradients of three tensors, two of a size and one of 777 elements; the payloads of four ranks are "
    "added up.",
}


def counted(row: str, preset: Sequence[Any]) -> list[dict[str, Any]]:
    """Launches of a row, by another process: this one's kernels are to be compiled, the other's are interpreted."""
    environment = os.environ | {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, str(HERE / "counted.py"), row, msgspec.json.encode(preset).decode()]
    told = subprocess.run(command, check=True, capture_output=True, env=environment)
    return msgspec.json.decode(told.stdout)


def machine_of(launch: dict[str, Any], generation: int) -> Machine:
    """The variant of a launch, compiled with what a launch on a GPU finds out about its arguments."""
    from offline import compiled

    kernel = getattr(import_module(launch["module"]), launch["kernel"])
    fixed = {one.name for one in kernel.params if one.do_not_specialize}
    kinds = launch["kinds"] | dict.fromkeys(launch["values"], "constexpr")
    return compiled(
        kernel,
        {name: kinds[name] for name in kernel.arg_names},
        launch["values"],
        generation=generation,
        num_warps=launch["num_warps"],
        aligned=tuple(name for name in launch["aligned"] if name not in fixed),
        fuse=launch["fuse"],
    )


def constants(values: dict[str, Any]) -> str:
    """BITS=4 INDEXED BLOCK=256: flags that are not set are left out."""
    told = [
        name if value is True else f"{name}={value}" for name, value in values.items() if value is not False
    ]
    return " ".join(told)


def work_of(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]}, and {len(names) - 1} more"


def table(page: Page, row: str, preset: Sequence[Any]) -> None:
    machine = [f"sm_{one}: {what}" for one in GENERATIONS for what in ("registers", "spilt", "shared bytes")]
    with page.table("kernel", "work", "variant", "warps", *machine, "no spills", "loaded", "stored", "must move",
                    "moved over must", "claim", "sectors over must") as add:  # fmt: skip
        for launch in counted(row, preset):
            made = [machine_of(launch, generation) for generation in GENERATIONS]
            must, moved = launch["must"], launch["loaded"] + launch["stored"]
            add(
                f"`{launch['kernel']}`",
                work_of(launch["work"]),
                constants(launch["values"]),
                launch["num_warps"],
                *(value for one in made for value in (one.registers, one.spilt_bytes, one.shared_bytes)),
                verdict(max(one.spilt_bytes for one in made), most=0),
                launch["loaded"],
                launch["stored"],
                must,
                f"{moved / must:.3f}",
                verdict(round(moved / must, 3), most=MOST),
                f"{launch['sectors'] / must:.3f}",
            )


def main() -> None:
    options = arguments(__doc__, tuple(ROWS))
    if find_spec("triton") is None:
        raise SystemExit('triton is not installed; pip install -e ".[triton]"')
    facts = {
        "Compiler": f"triton {version('triton')}, for sm_80 and sm_90; no GPU was used",
        "Repeats": "one; bytes are counted in Triton's interpreter, registers and shared memory told by ptxas",
    }
    page = Page("Bytes of Triton kernels", options.preset, facts)
    page.add(NOTES)
    for row in options.only:
        page.add(f"## {row.capitalize()}\n\n{ROWS[row]}")
        table(page, row, PRESETS[options.preset][row])
    page.finish(options)


NOTES = (
    "Loaded and stored: bytes of all accesses of all programs under their masks; an atomic addition is both. Must "
    "move: each distinct byte that is loaded, once, and each distinct byte that is stored, once. Sectors: the 32 bytes "
    "that caches and memory move at least, those that a program touches, each once a program, loaded and stored ones "
    "apart."
)


if __name__ == "__main__":
    main()
