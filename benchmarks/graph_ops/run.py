"""Speed of `wirewise.graph.ops` against torch and SciPy, one thread, interleaved in one process.

    OMP_NUM_THREADS=1 python benchmarks/graph_ops/run.py --preset paper --out result.md

Every contender of a row runs once a round, in turn; a cell is the median over the rounds, and the ratio is
the median of the per-round ratios to ours, with its quartiles. `copy` is one pass over a matrix of the size
of the output: what the memory allows.
"""

from __future__ import annotations

import statistics
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import scipy.sparse as sp
import torch
from torch.nn import functional

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from common import Page, basic_parser
from wirewise.graph import ops

warnings.filterwarnings("ignore", message=".*parse CSR tensor support.*")

Contenders = dict[str, Callable[[], object]]


@dataclass(frozen=True, kw_only=True)
class Preset:
    """Sizes of one rank's part."""

    nodes: int
    edges: int
    features: int
    features_a_node: float
    width: int
    rounds: int


PRESETS = {
    "smoke": Preset(nodes=500, edges=4_000, features=100, features_a_node=3.9, width=32, rounds=3),
    "paper": Preset(nodes=16_000, edges=150_000, features=1_000, features_a_node=3.9, width=256, rounds=25),
}


def random_rows(rows: int, columns: int, entries: int, *, seed: int) -> sp.csr_matrix:
    """A sparse matrix whose columns have skewed frequencies, as words and popular nodes do."""
    rng = np.random.default_rng(seed)
    column = (columns * rng.random(entries) ** 2).astype(np.int64)
    row = rng.integers(0, rows, entries)
    matrix = sp.csr_matrix((rng.random(entries, dtype=np.float32), (row, column)), shape=(rows, columns))
    matrix.sum_duplicates()
    return matrix


def sparse_tensor(matrix: sp.csr_matrix, index: torch.dtype = torch.int32) -> torch.Tensor:
    """A SciPy matrix for torch; int32 subscripts take the fastest MKL path."""
    indptr, indices = (torch.from_numpy(a).to(index) for a in (matrix.indptr, matrix.indices))
    data = torch.from_numpy(matrix.data)
    return torch.sparse_csr_tensor(indptr, indices, data, size=matrix.shape, check_invariants=False)


def aggregate_forward(preset: Preset, width: int) -> Contenders:
    """The sum over neighbours without autograd."""
    matrix = random_rows(preset.nodes, preset.nodes, preset.edges, seed=0)
    csr, tensor = ops.Csr.from_scipy(matrix), sparse_tensor(matrix)
    x, out = torch.randn(preset.nodes, width), torch.empty(preset.nodes, width)
    target = torch.repeat_interleave(torch.arange(preset.nodes), csr.indptr.diff())
    source, weight = csr.indices.long(), csr.weight[:, None]
    return {
        "wirewise": lambda: ops.aggregate_into(csr, x, out),
        "torch.sparse.mm": lambda: torch.sparse.mm(tensor, x),
        "index_add": lambda: out.zero_().index_add_(0, target, x[source] * weight),
        "scipy": lambda: matrix @ x.numpy(),
        "copy": lambda: out.copy_(x),
    }


def aggregate_both(preset: Preset, width: int) -> Contenders:
    """Forward and backward with a term for the row itself; torch is given the transposed matrix for free."""
    matrix = random_rows(preset.nodes, preset.nodes, preset.edges, seed=0)
    csr, forward, backward = (
        ops.Csr.from_scipy(matrix),
        sparse_tensor(matrix),
        sparse_tensor(matrix.T.tocsr()),
    )
    x = torch.randn(preset.nodes, width, requires_grad=True)
    own, g = torch.rand(preset.nodes), torch.randn(preset.nodes, width)

    def ours() -> object:
        return torch.autograd.grad(ops.aggregate(csr, x, self_weight=own), x, g)

    def theirs() -> object:
        with torch.no_grad():
            scale = own[:, None]
            torch.sparse.mm(forward, x).addcmul_(x, scale)
            return torch.sparse.mm(backward, g).addcmul_(g, scale)

    return {"wirewise": ours, "torch.sparse.mm": theirs}


def norm_act_drop(preset: Preset, width: int) -> Contenders:
    """LayerNorm, ReLU and dropout, forward and backward."""
    x = torch.randn(preset.nodes, width, requires_grad=True)
    gain, bias = torch.ones(width, requires_grad=True), torch.zeros(width, requires_grad=True)
    rows, g = torch.arange(preset.nodes), torch.randn(preset.nodes, width)
    out = torch.empty(preset.nodes, width)

    def ours() -> object:
        y = ops.norm_act_drop(x, gain, bias, p=0.5, key=1, rows=rows)
        return torch.autograd.grad(y, (x, gain, bias), g)

    def fallback() -> object:
        y = ops.norm_act_drop(x, gain, bias, p=0.5, key=1, rows=rows, implementation="torch")
        return torch.autograd.grad(y, (x, gain, bias), g)

    def theirs(p: float) -> object:
        y = functional.dropout(torch.relu(functional.layer_norm(x, (width,), gain, bias)), p)
        return torch.autograd.grad(y, (x, gain, bias), g)

    return {
        "wirewise": ours,
        "torch": lambda: theirs(0.5),
        "torch, no dropout": lambda: theirs(0.0),
        "our fallback": fallback,
        "copy": lambda: out.copy_(g),
    }


def sparse_linear(preset: Preset, width: int) -> Contenders:
    """First layer on sparse features and its weight gradient; torch gets the transposed for free."""
    matrix = random_rows(preset.nodes, preset.features, int(preset.nodes * preset.features_a_node), seed=1)
    x, forward, backward = ops.Csr.from_scipy(matrix), sparse_tensor(matrix), sparse_tensor(matrix.T.tocsr())
    weight = torch.randn(width, preset.features, requires_grad=True)
    g, out = torch.randn(preset.nodes, width), torch.empty(preset.nodes, width)

    def theirs() -> object:
        with torch.no_grad():
            torch.sparse.mm(forward, weight.t().contiguous())
            return torch.sparse.mm(backward, g).t().contiguous()

    return {
        "wirewise": lambda: torch.autograd.grad(ops.sparse_linear(x, weight), weight, g),
        "torch.sparse.mm": theirs,
        "copy": lambda: out.copy_(g),
    }


CLAIMS = {
    "aggregate, forward": aggregate_forward,
    "aggregate, forward + backward": aggregate_both,
    "norm_act_drop, forward + backward": norm_act_drop,
    "sparse_linear, forward + backward": sparse_linear,
}


def measure(contenders: Contenders, rounds: int) -> dict[str, list[float]]:
    """Seconds of each contender in each round, in turn."""
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for call in contenders.values():
        call()
    for _ in range(rounds):
        for name, call in contenders.items():
            start = time.perf_counter()
            call()
            seconds[name].append(time.perf_counter() - start)
    return seconds


def add_table(page: Page, title: str, seconds: dict[str, list[float]]) -> None:
    """One table: milliseconds, and the time against ours round by round."""
    page.add(f"## {title}")
    with page.table("", "ms", "time / ours, median (quartiles)") as row:
        for name, samples in seconds.items():
            ratios = [a / b for a, b in zip(samples, seconds["wirewise"], strict=True)]
            low, middle, high = statistics.quantiles(ratios, n=4)
            told = f"{middle:.2f} ({low:.2f} to {high:.2f})"
            row(name, f"{statistics.median(samples) * 1e3:.2f}", told)


def main() -> None:
    options = basic_parser(__doc__).parse_args()
    preset = PRESETS[options.preset]
    torch.set_num_threads(1)
    start = time.perf_counter()
    ops.warm()
    facts = {
        "Graph": f"{preset.nodes} nodes, {preset.edges} edges, {preset.features} features of which "
        f"{preset.features_a_node} a node, float32",
        "Repeats": f"{preset.rounds} interleaved rounds, one thread; "
        f"kernels compiled or loaded in {time.perf_counter() - start:.1f} s",
    }
    page = Page("Operators of graphs", options.preset, facts)
    for name, make in CLAIMS.items():
        for width in (preset.width, preset.width // 4):
            add_table(page, f"{name}, width {width}", measure(make(preset, width), preset.rounds))
    page.finish(options)


if __name__ == "__main__":
    main()
