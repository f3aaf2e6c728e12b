"""Verification of a parallel plan by threads of one process, compared with one device, node by node."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor, fx

from wirewise.errors import InputError, PlanError
from wirewise.plans.parallel import ParallelPlan
from wirewise.runtime.parallel.groups import ThreadGroups
from wirewise.runtime.parallel.local import draws_random_numbers
from wirewise.runtime.parallel.parts import part_of_mesh, whole_of_parts
from wirewise.runtime.parallel.program import CapturedStep, RankExecutor

__all__ = ["reference_outputs", "verify"]


def reference_outputs(
    step: CapturedStep, inputs: Sequence[Tensor], state: Mapping[str, Tensor]
) -> dict[str, Any]:
    """Outputs of all nodes on one device, by node name."""
    found: dict[str, Any] = {}

    class ValueRecorder(fx.Interpreter):
        def run_node(self, n: fx.Node) -> Any:
            found[n.name] = super().run_node(n)
            return found[n.name]

    given = []
    by_name = {node.name: node for node in step.graph.nodes}
    for node in step.module.graph.find_nodes(op="placeholder"):
        own = by_name[node.name]
        given.append(inputs[int(own.source)] if own.op == "input" else state[own.source])
    with torch.no_grad():
        ValueRecorder(step.module).run(*given)
    return found


def verify(
    plan: ParallelPlan,
    step: CapturedStep,
    inputs: Sequence[Tensor],
    state: Mapping[str, Tensor],
    *,
    tolerance: float = 1e-4,
) -> None:
    """Raise unless every node's value under the plan equals that on one device.

    A planner's plan is correct by construction; a hand-written or edited one may not be, and would silently give
    wrong numbers. Needs no process group; takes the memory and the time of a few steps on one device.

    Args:
        plan: Plan with one stage.
        step: Captured step of the whole batch.
        inputs: One whole batch.
        state: Values of parameters and buffers, by name.
        tolerance: Maximum difference, as a fraction of the node's largest value.

    Raises:
        InputError: The plan has several stages or microbatches, or the step draws random numbers.
        PlanError: A node differs; the message names the first one and its placements.
    """
    if plan.stages > 1 or plan.microbatches > 1:
        raise InputError(
            f"the plan has {plan.stages} stages and {plan.microbatches} microbatches; expected one of each"
        )
    if random := [node.name for node in step.module.graph.nodes if draws_random_numbers(node)]:
        raise InputError(
            f"{random[0]} draws random numbers, which differ each time; expected a step without dropout: capture it "
            "with the model in eval()"
        )
    whole = reference_outputs(step, inputs, state)
    found = _on_parts(plan, step, inputs, state)
    for number, node in enumerate(step.graph.nodes):
        wanted = whole.get(node.name)
        if node.op == "output" or not isinstance(wanted, Tensor) or number not in found[0]:
            continue
        placements = plan.placement_of(number)
        got = whole_of_parts([one[number] for one in found], placements, plan.mesh)
        kept = got.shape == wanted.shape and _near(got, wanted, tolerance)
        if not kept:
            raise PlanError(
                f"node {node.name!r} ({node.op}, module {node.module!r}) is not what one device computes when it is "
                f"placed {' '.join(plan.placements[number])} and takes "
                f"{_takes(plan, step, number)} - at `$.placements[{number}]`; expected another placement or a move"
            )


def _near(got: Tensor, wanted: Tensor, tolerance: float) -> bool:
    if not wanted.is_floating_point():
        return torch.equal(got, wanted)
    most = float(wanted.abs().max()) if wanted.numel() else 0.0
    return bool(torch.allclose(got, wanted, rtol=tolerance, atol=tolerance * most, equal_nan=True))


def _takes(plan: ParallelPlan, step: CapturedStep, number: int) -> str:
    target = {(move.producer, consumer): move.target for move in plan.moves for consumer in move.consumers}
    words = (
        f"{step.graph.nodes[source].name} {' '.join(target.get((source, number), plan.placements[source]))}"
        for source in step.graph.nodes[number].inputs
    )
    return ", ".join(words) or "nothing"


class _Recorded(RankExecutor):
    """A program that keeps the outputs of all nodes."""

    record: dict[int, Any]

    def _compute(self, number: int, values: Any, *, again: bool = False) -> Any:
        self.record[number] = found = super()._compute(number, values, again=again)
        return found


def _on_parts(
    plan: ParallelPlan,
    step: CapturedStep,
    inputs: Sequence[Tensor],
    state: Mapping[str, Tensor],
) -> list[dict[int, Any]]:
    """Outputs of all nodes on each rank."""
    meeting = ThreadGroups.create_rendezvous(prod(plan.mesh))
    places = list(itertools.product(*map(range, plan.mesh)))
    found: list[dict[int, Any]] = [{} for _ in places]
    errors: list[BaseException] = []

    def run(number: int) -> None:
        try:
            groups = ThreadGroups(plan.mesh, places[number], meeting)
            program = _Recorded(step, plan, groups)
            program.record = found[number]
            held = program.constants()
            for n in program.held:
                node = step.graph.nodes[n]
                if node.op == "constant":
                    continue
                whole = inputs[int(node.source)] if node.op == "input" else state[node.source]
                held[n] = part_of_mesh(whole, program.placements(n), plan.mesh, places[number])
            program.record.update(held)
            with torch.no_grad():
                values = program.values(0, held)
                program.run("forward", values)
                program.run("backward", values)
                for n in step.graph.gradients.values():
                    program.end(n, values)
        except BaseException as error:
            errors.append(error)
            meeting.barrier.abort()

    threads = [threading.Thread(target=run, args=(n,), daemon=True) for n in range(len(places))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    real = [error for error in errors if not isinstance(error, threading.BrokenBarrierError)]
    if real or errors:
        raise (real or errors)[0]
    return found
