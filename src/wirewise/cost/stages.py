"""Costs of pipeline stages for one microbatch: pass times in seconds, bytes kept and sent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from wirewise.errors import InputError
from wirewise.trace.stages import StageTrace

__all__ = ["StageCosts"]

Vector = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class StageCosts:
    """Costs of S stages, each on one rank or on its tensor-parallel width."""

    forward_s: Vector
    """Seconds of a forward pass, [S]."""
    backward_s: Vector
    """Seconds of a whole backward pass without recomputation, [S]."""
    weight_s: Vector
    """Seconds of the part of a backward pass for weight gradients, [S]."""
    optimizer_s: Vector
    """Seconds to update the parameters, [S]."""
    edge_bytes: dict[tuple[int, int], float]
    """Bytes of the activations between two stages, by both; their gradients have as many."""
    input_bytes: Vector
    """Bytes of the input, which is replicated on a stage's ranks, [S]."""
    saved_bytes: Vector
    """Bytes that are kept from the forward to the backward pass, [S]."""
    parameter_bytes: Vector
    """Bytes of the parameters, [S]."""
    state_factor: float
    """Bytes of gradients and optimizer state per byte of parameters."""
    value_bytes: dict[tuple[int, int], dict[str, float]] = field(default_factory=dict)
    """Bytes of each module's output in `edge_bytes`; empty if unknown."""

    @classmethod
    def of(
        cls,
        trace: StageTrace,
        stages: Sequence[Sequence[str]],
        microbatch_size: int = 1,
        widths: Sequence[int] | None = None,
    ) -> StageCosts:
        """Sum the costs of the modules of each stage.

        A tensor that several modules of a later stage read is sent once.

        Args:
            trace: Modules as they were measured.
            stages: Names of the modules of each stage; together all modules of the trace.
            microbatch_size: Samples per microbatch.
            widths: Ranks that share each stage's tensors. Defaults to 1.

        Raises:
            InputError: The modules are not those of the trace, a stage reads the output of a later one, or the trace
                has no times for a width.
        """
        of = _stage_of(trace, stages)
        count, b = len(stages), float(microbatch_size)
        width = np.ones(count) if widths is None else np.array(widths, dtype=np.float64)
        speedup = np.array([_speedup(trace, int(w)) for w in width])
        times = np.array([trace.times(number, microbatch_size) for number in range(len(trace.modules))])
        forward, backward, weight = (_summed(times[:, i], of, count) / speedup for i in range(3))
        per_module = {
            name: np.array([getattr(module, name) for module in trace.modules])
            for name in ("optimizer_s", "saved_bytes", "parameter_bytes")
        }
        into: dict[tuple[int, int], None] = {}
        for source, target in trace.flows:
            if of[source] > of[target]:
                raise InputError(
                    f"module {trace.modules[target].name!r} of stage {of[target]} takes the output of "
                    f"{trace.modules[source].name!r}, which a later stage {of[source]} computes; move one of them"
                )
            if of[source] < of[target]:
                into[source, int(of[target])] = None
        edges: dict[tuple[int, int], float] = {}
        values: dict[tuple[int, int], dict[str, float]] = {}
        inputs = np.zeros(count)
        inputs[of[0]] = trace.input_bytes * b
        for source, stage in into:
            size = trace.modules[source].output_bytes * b
            inputs[stage] += size
            pair = (int(of[source]), stage)
            edges[pair] = edges.get(pair, 0.0) + size
            values.setdefault(pair, {})[trace.modules[source].name] = size
        return cls(
            forward_s=forward,
            backward_s=backward,
            weight_s=weight,
            optimizer_s=_summed(per_module["optimizer_s"], of, count) / width,
            edge_bytes=dict(sorted(edges.items())),
            input_bytes=inputs,
            saved_bytes=_summed(per_module["saved_bytes"], of, count) * b / width,
            parameter_bytes=_summed(per_module["parameter_bytes"], of, count) / width,
            state_factor=trace.state_factor,
            value_bytes=values,
        )


def _stage_of(trace: StageTrace, stages: Sequence[Sequence[str]]) -> NDArray[np.int64]:
    found = np.full(len(trace.modules), -1, np.int64)
    for stage, names in enumerate(stages):
        for name in names:
            if name not in trace.numbers:
                raise InputError(
                    f"stage {stage} has module {name!r}, which the job has not; make the plan again"
                )
            found[trace.numbers[name]] = stage
    if (missing := np.flatnonzero(found < 0)).size:
        raise InputError(
            f"no stage has module {trace.modules[missing[0]].name!r} of the job; make the plan again"
        )
    return found


def _speedup(trace: StageTrace, width: int) -> float:
    if width == 1:
        return 1.0
    if width not in trace.width_speedup:
        known = ", ".join(map(str, sorted({1, *trace.width_speedup})))
        raise InputError(
            f"a stage has {width} ranks a replica, and the job does not say how fast these compute it together "
            f"(`$.width_speedup`); known are: {known}"
        )
    return trace.width_speedup[width]


def _summed(values: Vector, of: NDArray[np.int64], count: int) -> Vector:
    return np.bincount(of, values, count).astype(np.float64)
