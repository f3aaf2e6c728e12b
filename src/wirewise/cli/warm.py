"""Compile kernels ahead of time by small jobs of every kind, so that a user's first command is fast."""

from __future__ import annotations

import contextlib
import importlib
import io
import multiprocessing
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from fractions import Fraction
from multiprocessing.synchronize import Lock
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wirewise import jit
from wirewise.errors import WirewiseError
from wirewise.files import write_json
from wirewise.hosts import OwnedFolder
from wirewise.hosts.processes import die_with_parent

if TYPE_CHECKING:
    from wirewise.graph.structure import InEdges
    from wirewise.trace.operators import FusionGraph

__all__ = ["JOBS", "run_job", "warm_kernels"]

_MOST_PROCESSES = 4
"""Each holds torch and a compiler in memory."""
_RANKS, _STEPS = 2, 3
_TRACE, _GRADIENTS, _OPERATORS, _MODULES = "run", "gradients.json", "operators.json", "modules.json"
JOBS: tuple[tuple[str, ...], ...] = (
    ("gradient codecs",),
    (f"plan placement {_MODULES} --topology lab-2@100mbit --with tag --simulations 20",),
    ("plan jobs even --out jobs.json --job-out queue.json", "check jobs.json --job queue.json", "queues"),
    (
        "data partition debian -o parts --parts 2",
        "data partition debian -o streamed --parts 2 --method stream",
        "data convert debian -o mapped",
        "plan placement --topology lab-4@100mbit --dataset debian",
    ),
    (f"plan fusion --graph {_OPERATORS} --ranks 2 --bandwidth 1gbit",),
    (
        "plan collective --topology h4 --bytes 1MB --with blink -o collective.json",
        "check collective.json",
        "plan collective --topology h4 --collective all_to_all --bytes 1MB --time-limit 2",
    ),
    ("codec",),
    ("plan collective --topology dgx-1v --bytes 1MB --with adapt", "cuts"),
    (
        f"plan fusion --trace {_GRADIENTS} --ranks 4 --bandwidth 1gbit --codec efsign -o fusion.json",
        f"plan fusion --trace {_GRADIENTS} --ranks 4 --bandwidth 1gbit --codec efsign --decode inline,lazy",
    ),
    ("graphs",),
    ("planners.bitwidth",),
    ("plan reshard --from 2x2:R,S0,R --to 2x2:S0,R,R --shape 64,64,16 --topology lab-4x2@200mbit",),
    ("plan cache --dataset debian --workers 2 --alpha 0.1", "caches"),
    ("graph.ops",),
    (f"trace show {_TRACE}", f"sim {_TRACE} --what-if bandwidth=*:x2", f"plan fusion {_TRACE}"),
    ("sampling",),
    (f"plan pipeline {_MODULES} --topology lab-2@100mbit",),
)
"""Jobs that compile all kernels, the longest first: commands that run in one folder on minimal inputs, and names of
`_CALLS` for kernels that no command compiles."""


def warm_kernels(jobs: Sequence[tuple[str, ...]] = JOBS) -> list[str]:
    """Compile the kernels of some jobs in several processes, which end with this one.

    A kernel that two jobs need may be compiled twice.

    Args:
        jobs: Jobs as in `JOBS`.

    Returns:
        Commands that failed, with the reason.
    """
    from wirewise.cli.output import progress

    processes = min(_MOST_PROCESSES, len(os.sched_getaffinity(0)), len(jobs))
    context = multiprocessing.get_context("spawn")
    others = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(processes, context, _begin, (os.getpid(), context.Lock()))
    failed = []
    try:
        with progress() as show:
            show(f"compiling kernels: {len(jobs)} jobs, {processes} at a time")
            results = [pool.submit(run_job, job) for job in jobs]
            for done, result in enumerate(as_completed(results), 1):
                failed += result.result()
                show(f"compiling kernels: {done} of {len(jobs)} jobs are done")
    except BaseException:
        for process in set(multiprocessing.active_children()) - others:
            process.kill()
        raise
    finally:
        pool.shutdown(cancel_futures=True)
    return failed


def run_job(job: tuple[str, ...]) -> list[str]:
    """Run the commands and calls of a job in its own folder, and return those that failed, with the reason."""
    failed = []
    with _own_folder() as folder:
        _write_inputs(folder)
        for step in job:
            output = io.StringIO()
            with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
                try:
                    code = _CALLS[step]() if step in _CALLS else _run_command(step)
                except WirewiseError as error:
                    failed.append(f"{step}: {error}")
                    continue
                except SystemExit as error:
                    code = error.code
            if code:
                lines = output.getvalue().split("\n")
                failed.append(f"{step}: {next(filter(None, reversed(lines)), f'exit code {code}')}")
    return failed


def _begin(parent: int, first: Lock) -> None:
    """Prepare a process: the parent answers Ctrl-C, and the first process that compiles says so."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    die_with_parent(parent)

    def announce(text: str) -> None:
        # stderr of a command is put aside meanwhile.
        if sys.__stderr__ and not sys.__stderr__.isatty() and first.acquire(block=False):
            print(text, file=sys.__stderr__, flush=True)

    jit.announce(announce)


def _run_command(words: str) -> object:
    """Exit code of a command, 0 or None without an error; the command line prints errors of wirewise."""
    from wirewise.cli.main import app

    return app(words.split(), standalone_mode=False)


def _warm_module(name: str) -> Callable[[], None]:
    return lambda: importlib.import_module(f"wirewise.{name}").warm()


def _warm_gradient_codecs() -> None:
    import numpy as np
    import torch

    from wirewise.codec.gradients import CODECS
    from wirewise.codec.gradients.copying import copy_checked, parts_finite
    from wirewise.profile.gradients import warm_codecs

    warm_codecs(CODECS)
    copy_checked(torch.zeros(4), torch.empty(4))
    parts_finite(torch.zeros(4), np.array([[0, 4]]))


def _warm_queues() -> None:
    """Call what only running queues and the training of policies call."""
    from wirewise.planners.jobs.rules import expected_queue, knowledge, start_all
    from wirewise.sim.jobs import draw_queue
    from wirewise.sim.jobs.engine import arrive, leave, new_state

    queue = draw_queue(jobs=2).arrays()
    state = new_state(queue, 4)
    arrive(queue, state)
    start_all(expected_queue(queue), state, knowledge(expected_queue(queue)))
    leave(state, 0)


def _warm_cuts() -> None:
    """Cut a network that is too large to try every cut."""
    import numpy as np

    from wirewise.collective.exchange_cuts import ALL, exchange_cut
    from wirewise.collective.maxflow import Capacities

    ring = np.arange(ALL + 1)
    capacities = Capacities(ALL + 1, ring, np.roll(ring, 1), np.ones_like(ring), Fraction(1))
    exchange_cut(capacities, np.ones_like(ring))


def _warm_caches() -> None:
    import numpy as np

    from wirewise.planners.cache.inclusion import Drawers, one_hop
    from wirewise.runtime.mini_batch.kernels import copy_rows

    one_hop(Drawers(_edges()), np.arange(8), 4, 2)
    slots = np.zeros(1, np.int32)
    for kind in (np.float32, np.int16):
        # Rows of float32, and the bits of halves.
        copy_rows(slots, *(np.zeros((1, 2), kind) for _ in range(3)))


def _warm_sampling() -> None:
    """Sample from a whole graph, and as partitioned graphs do: drawn on one rank, numbered on another."""
    import numpy as np

    from wirewise.graph.sampling import SEMANTICS, NeighborSampler
    from wirewise.graph.sampling.kernels import draw, number

    edges, seeds = _edges(), np.arange(4)
    for semantics in SEMANTICS:
        NeighborSampler(edges, [2, 2], semantics=semantics).sample(seeds)
    rows, drawn = seeds.astype(np.int32), np.empty(8, np.int32)
    draw(edges.indptr, edges.indices, rows, 0, 2, 1, np.empty(4, np.int32), drawn)
    number(drawn, np.empty(64, np.int64), 0, np.zeros(64, np.int64), 1, np.empty(8, np.int32))


def _warm_graphs() -> None:
    """Select nodes to rehearse, and partition a directed graph; the shipped one is undirected."""
    import numpy as np

    from wirewise.graph.rehearsal import coverage, k_centre
    from wirewise.graph.streaming import stream

    edges, nodes = _edges(), np.arange(64)
    k_centre(edges, nodes, 4)
    coverage(edges, nodes, 4)
    stream(edges, 2, np.ones_like(nodes), seed=0, max_imbalance=0.1, directed=True)


def _edges() -> InEdges:
    from wirewise.graph import BlockModel, block_model

    return block_model(BlockModel(nodes=64)).in_edges


_CALLS: dict[str, Callable[[], object]] = {
    **{name: _warm_module(name) for name in ("codec", "graph.ops", "planners.bitwidth")},
    "gradient codecs": _warm_gradient_codecs,
    "queues": _warm_queues,
    "cuts": _warm_cuts,
    "caches": _warm_caches,
    "sampling": _warm_sampling,
    "graphs": _warm_graphs,
}
"""Calls by name; each compiles what no command reaches, on the smallest inputs."""


@contextlib.contextmanager
def _own_folder() -> Iterator[Path]:
    before = Path.cwd()
    with OwnedFolder(Path(tempfile.gettempdir()), "wirewise-warm-") as own:
        os.chdir(own.path)
        try:
            yield own.path
        finally:
            os.chdir(before)


def _write_inputs(folder: Path) -> None:
    """A recorded run, gradients, operators and modules, for the commands."""
    from wirewise.trace import (
        Header,
        RankTrace,
        StageModule,
        StageTrace,
        Trace,
        write_stage_trace,
        write_trace,
    )
    from wirewise.trace.gradients import GradientTensor, GradientTrace

    groups = {"world": list(range(_RANKS))}
    ranks = [
        RankTrace(Header(rank=rank, world_size=_RANKS, host=f"host{rank}", groups=groups, run="warm"), _ops())
        for rank in range(_RANKS)
    ]
    write_trace(Trace(ranks=ranks), folder / _TRACE)
    tensors = tuple(GradientTensor(name=f"{n}.weight", elements=4**n * 100, gap_us=200.0) for n in range(6))
    write_json(folder / _GRADIENTS, GradientTrace(tensors=tensors))
    _operators().save(folder / _OPERATORS)
    modules = [
        StageModule(
            name=f"m{n}",
            forward_s=(1e-3,),
            backward_s=(2e-3,),
            output_bytes=1e4,
            saved_bytes=1e5,
            parameter_bytes=1e6,
        )
        for n in range(4)
    ]
    write_stage_trace(StageTrace(modules=tuple(modules)), folder / _MODULES)


def _operators() -> FusionGraph:
    """Two layers forward and back; each value is read twice, so that regions can be fused, copied and split."""
    from wirewise.trace.operators import FusionGraph, Operator

    read = [(), (0,), (0, 1), (2,), (2, 3), (4, 2), (4, 5), (6, 0), (6, 7)]
    kinds = {5: "last.weight", 8: "first.weight"}
    return FusionGraph(
        operators=tuple(
            Operator(
                name=f"op{n}",
                kind="aten.mul.Tensor",
                category="pointwise",
                inputs=inputs,
                output_bytes=40_000,
                elements=10_000,
                flops=1e4,
                time_s=2e-5,
                gradient=kinds.get(n, ""),
            )
            for n, inputs in enumerate(read)
        )
    )


def _ops() -> list[Any]:
    """Steps of two layers whose gradients are reduced."""
    from wirewise.trace import Op

    ops = []
    for step in range(_STEPS):
        at = 0.02 * step
        times: dict[str, Any] = {"step": step}
        ops.append(Op(name="step", kind="step", start_s=at, end_s=at + 0.02, **times))
        ops.append(Op(name="forward", kind="forward", start_s=at, end_s=at + 0.004, **times))
        for number in range(2):
            start = at + 0.005 + 0.003 * number
            bucket: dict[str, Any] = {"group": "world", "seq": 2 * step + number, **times}
            backward = Op(
                name=str(1 - number),
                kind="backward",
                start_s=start,
                end_s=start + 0.003,
                gradient_bytes=40_000,
                **times,
            )
            ops.append(backward)
            reduced = Op(
                name=f"bucket {number}", kind="communication", start_s=start + 0.003, end_s=start + 0.006,
                thread="comm", collective="all_reduce", size_bytes=40_000, enqueued_s=start + 0.003,
                parameters=(f"{1 - number}.weight",), **bucket,
            )  # fmt: skip
            ops.append(reduced)
        ops.append(
            Op(
                name="bucket 1",
                kind="wait",
                start_s=at + 0.011,
                end_s=at + 0.014,
                group="world",
                seq=2 * step + 1,
                **times,
            )
        )
        ops.append(Op(name="optimizer", kind="optimizer", start_s=at + 0.015, end_s=at + 0.019, **times))
    return ops
