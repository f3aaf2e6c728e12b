"""Claims about the quantizer's kernels: speed against a copy of the same float32 bytes and torch ops.

    python benchmarks/quantize_kernels/run.py --preset smoke|paper [--device cpu|cuda] [--out FILE.md]

One thread. Every round runs each operation with a copy right before it, in one process; a ratio is the median
over rounds of (time of that copy) / (time of the operation). Rows are encoded with stochastic rounding. On a GPU there
are ten times the messages of the paper preset, more than its caches hold.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from common import Page, basic_parser
from wirewise import codec

PRESETS = {
    "smoke": {"messages": 2_000, "widths": [256], "bits": [8, 4, 2], "repeats": 3},
    "paper": {"messages": 40_000, "widths": [256, 64], "bits": [8, 4, 2, 1, 16, 32], "repeats": 25},
}
CLAIMS = {("pack", 256, 4): 0.5, ("unpack", 256, 4): 0.8}
"""Least ratio to the copy, for jobs that no cache holds."""
CUDA_TIMES = 10
CLAIM_BYTES = 30_000_000
TORCH_CLAIM = 10.0


def plain_pack(x, bits, out):
    """Packing in plain torch operations: range, noise, codes, shifts; no gather, no parameters."""
    low, high = x.amin(1, keepdim=True), x.amax(1, keepdim=True)
    levels = (1 << bits) - 1
    codes = (
        ((x - low) * (levels / (high - low)) + torch.rand_like(x)).floor_().clamp_(0, levels).to(torch.uint8)
    )
    planes, size = 8 // bits, out.shape[1]
    packed = codes[:, :size].clone()
    for plane in range(1, planes):
        packed |= codes[:, plane * size : (plane + 1) * size] << (plane * bits)
    out.copy_(packed)
    return low, (high - low) / levels


def plain_unpack(packed, bits, low, step, out):
    """Inverse of `plain_pack`."""
    size, mask = packed.shape[1], (1 << bits) - 1
    for plane in range(8 // bits):
        part = (packed >> (plane * bits)) & mask
        out[:, plane * size : (plane + 1) * size] = part.to(torch.float32) * step + low


class Job:
    """Tensors of one width, and the operations to time: name -> (bits, action)."""

    def __init__(self, width: int, preset: dict, device: torch.device) -> None:
        count = preset["messages"] * (CUDA_TIMES if device.type == "cuda" else 1)
        generator = torch.Generator().manual_seed(0)
        self.width, self.size_bytes = width, 4 * count * width
        self.source = torch.randn(count, width, generator=generator).to(device)
        self.target = torch.empty_like(self.source)
        twice = torch.randn(2 * count, width, generator=generator).to(device)
        half = torch.randperm(2 * count, generator=generator)[:count].sort().values.to(device)
        whole = torch.arange(count, device=device)
        self.rows = np.arange(count, dtype=np.int64) if device.type == "cpu" else whole
        self.operations: dict[tuple[str, int], Callable[[], object]] = {
            ("gather half of the rows (torch)", 32): lambda: torch.index_select(
                twice, 0, half, out=self.target
            )
        }
        for bits in preset["bits"]:
            self._add(bits, twice, half, whole)

    def _add(self, bits: int, twice: torch.Tensor, half: torch.Tensor, whole: torch.Tensor) -> None:
        layout = codec.MessageLayout(np.full(len(self.source), bits), self.width)
        buffer = torch.empty(layout.size_bytes, dtype=torch.uint8, device=self.source.device)
        out, summed = torch.empty_like(self.source), torch.zeros_like(self.source)

        def pack(x, index):
            codec.pack(x, index, layout, buffer, key=1, rows=self.rows)

        self.operations |= {
            ("pack", bits): lambda: pack(self.source, whole),
            ("pack, half of the rows", bits): lambda: pack(twice, half),
            ("unpack", bits): lambda: codec.unpack(buffer, layout, out),
            ("unpack and add", bits): lambda: codec.unpack_add(buffer, layout, whole, summed),
        }
        if bits < 16:
            packed = torch.empty(
                len(self.source), -(-self.width * bits // 8), dtype=torch.uint8, device=out.device
            )
            low, step = plain_pack(self.source, bits, packed)
            self.operations |= {
                ("torch pack", bits): lambda: plain_pack(self.source, bits, packed),
                ("torch unpack", bits): lambda: plain_unpack(packed, bits, low, step, out),
            }

    def copy(self) -> None:
        self.target.copy_(self.source)


def seconds(action: Callable[[], object], device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    action()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def measure(
    job: Job, repeats: int, device: torch.device
) -> tuple[np.ndarray, dict[tuple[str, int], np.ndarray]]:
    """Times of copies and of operations, in rounds; the first round warms up and is dropped."""
    copies = np.empty((repeats + 1, len(job.operations)))
    times = {name: np.empty(repeats + 1) for name in job.operations}
    for repeat in range(repeats + 1):
        for place, (name, action) in enumerate(job.operations.items()):
            copies[repeat, place] = seconds(job.copy, device)
            times[name][repeat] = seconds(action, device)
    return copies[1:], {name: values[1:] for name, values in times.items()}


def table(job: Job, preset: dict, device: torch.device) -> tuple[list[str], list[list[str]]]:
    """Titles and rows of the result for one width."""
    copies, times = measure(job, preset["repeats"], device)
    rows = [_row(job, "copy", 32, copies.ravel(), "1.00", "", "")]
    for place, ((name, bits), values) in enumerate(times.items()):
        ratio = float(np.median(copies[:, place] / values))
        plain = times.get((f"torch {name}", bits))
        faster = None if plain is None else float(np.median(plain / values))
        rows.append(
            _row(job, name, bits, values, f"{ratio:.2f}", "" if faster is None else f"{faster:.1f}x",
                 _verdict(job, name, bits, ratio, faster))
        )  # fmt: skip
    titles = [
        "operation",
        "bits",
        "min ms",
        "median ms",
        "quartiles ms",
        "GB/s",
        "ratio to copy",
        "to torch ops",
        "claim",
    ]
    return titles, rows


def _verdict(job: Job, name: str, bits: int, ratio: float, faster: float | None) -> str:
    claim = CLAIMS.get((name, job.width, bits))
    if claim is None or job.size_bytes < CLAIM_BYTES:
        return ""
    held = ratio >= claim and faster is not None and faster >= TORCH_CLAIM
    return f">= {claim} and {TORCH_CLAIM:.0f}x: {'holds' if held else 'FAILS'}"


def _row(job: Job, name: str, bits: int, values: np.ndarray, *rest: str) -> list[str]:
    low, median, high = np.percentile(values, [25, 50, 75]) * 1e3
    rate = job.size_bytes / np.median(values) / 1e9
    best = f"{values.min() * 1e3:.2f}"
    return [name, str(bits), best, f"{median:.2f}", f"{low:.2f} to {high:.2f}", f"{rate:.2f}", *rest]


def main() -> None:
    parser = basic_parser(__doc__)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    preset, device = PRESETS[options.preset], torch.device(options.device)
    messages = preset["messages"] * (CUDA_TIMES if device.type == "cuda" else 1)
    facts = {
        "Device": torch.cuda.get_device_name() if device.type == "cuda" else "processor, one thread",
        "Repeats": f"{preset['repeats']} interleaved rounds after one to warm up; GB/s counts the float32 bytes "
        f"of {messages} messages at the median; measured, not emulated",
    }
    page = Page("Quantizer kernels", options.preset, facts)
    page.add(
        "`pack` reads all rows of a matrix through an index; `half of the rows` picks every second one on "
        "average, sorted, where fetching rows binds: compare torch's own gather in the second line."
    )
    for width in preset["widths"]:
        job = Job(width, preset, device)
        page.add(f"## {width} columns, {job.size_bytes / 1e6:.0f} MB")
        titles, rows = table(job, preset, device)
        with page.table(*titles) as row:
            for cells in rows:
                row(*cells)
    page.finish(options)


if __name__ == "__main__":
    main()
