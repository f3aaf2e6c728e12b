"""Gradients of one back-propagation through distributed models: checked, summed over ranks, accumulated."""

from __future__ import annotations

import struct
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from wirewise.errors import InputError
from wirewise.integrations.pyg.budget import CheckBudget, Interval
from wirewise.integrations.pyg.examination import FAULTS, Examination
from wirewise.integrations.pyg.loss_signs import record_output
from wirewise.integrations.pyg.losses import Output
from wirewise.integrations.pyg.parameters import ParameterGuard, claim
from wirewise.integrations.pyg.replicas import Replicas
from wirewise.integrations.pyg.watch import CheckInterval
from wirewise.runtime import full_graph
from wirewise.runtime.data_parallel import Reducer
from wirewise.runtime.data_parallel.hooks import WeakHook

__all__ = ["GradientSum"]

_FAULT, _STEP, _EXCHANGES, _PARAMETERS, _PLAIN, _DECLARED, _PENALTY, _PROOF, _SPACING, _FIELDS = range(10)
"""Fields of the message that each rank sends to all others when a gradient reaches the outputs, int64."""
_LESS_PLAIN = (4, 5)
"""Faults that are reported only if the gradient reaches no nodes outside train_mask, which is the better message."""
_ALIKE_PARTS = {
    _PLAIN: "gives a mean over training nodes another weight",
    _DECLARED: "gives a result of job.mean or job.sum another weight",
    _PENALTY: "has a part without outputs, such as a penalty on parameters, that has another gradient",
}
"""Values that have to be equal on all ranks, by their field."""
_ALIKE = 1e-5
"""Relative difference of weights that rounding explains: 1 / n of ranks with other n is off by 1e-7 in float32."""


class GradientSum:
    """Sum of gradients over ranks, with a check of all ranks in a small all-reduce before it.

    Args:
        module: The distributed copy, or a list of several.
        transport: Messages between the ranks.
        bits: Width of gradients between the ranks.
        interval: Interval, in back-propagations, between proofs that the loss reads rows independently.
    """

    def __init__(
        self, module: nn.Module, transport: full_graph.Transport, bits: int, interval: Callable[[], Interval]
    ) -> None:
        self.transport = transport
        self.guard = ParameterGuard(module, (GradientSum, Reducer))
        self.replicas = Replicas(module, transport)
        self.reducer = full_graph.gradient_reducer(module, transport, scale="mean", bits=bits)
        # A look takes some back-propagations of the loss alone.
        self.loss_recheck = CheckInterval(interval(), free_checks=64)
        self.penalty_recheck = CheckInterval(interval())
        self.budget = CheckBudget()
        self.spacing = 1
        """Distance of full checks that ranks agreed on in this back-propagation."""
        self._self = weakref.ref(self)
        self.opened: dict[weakref.ref[Output], int] = {}
        """Outputs since the last back-propagation, with their numbers in the order of autograd."""
        self.known_loss: Any = None
        """Signs of the last loss that was walked and is right."""
        self.trusted = Examination()
        """Examination in steps that take the loss for the known one."""
        self.steps = 0
        """Back-propagations so far."""
        self.exchanges = 0
        """Number that stands for the exchanges since the last back-propagation, in their order."""
        self.wants_proof = False
        """This rank would prove again that rows do not mix; afterwards, some rank would."""
        self.before: dict[nn.Parameter, Tensor] = {}
        """Gradients of back-propagations before, summed over ranks already, while another one goes on."""
        self.reached: set[nn.Parameter] = set()
        """Parameters that this back-propagation has given a gradient on this rank."""
        reach = WeakHook(self._reach)
        for parameter in self.guard.names.values():
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(reach)

    def open(self, output: Output, number: int) -> None:
        """Register an output that a loss may be computed from."""
        # A WeakKeyDictionary does so by itself, and takes four times as long for one output.
        if len(self.opened) > 1:
            self.opened = {held: n for held, n in self.opened.items() if held() is not None}
        self.opened[weakref.ref(output)] = number
        record_output(self._self)

    def outputs(self) -> list[Output]:
        """Outputs since the last back-propagation that are still alive."""
        return [output for held in self.opened if (output := held()) is not None]

    def signs_of(self, root: Any, path: Any) -> Any:
        """Signature of a loss: operations since the first output, number of outputs, and a path's operations."""
        numbers = [number for held, number in self.opened.items() if held() is not None]
        return root._sequence_nr() - min(numbers, default=0), len(numbers), path

    def _is_known(self, root: Any) -> bool:
        """Whether a loss has as many operations and outputs as the known one."""
        operations, outputs, _ = self.known_loss
        if len(self.opened) > 1:
            return self.signs_of(root, self.known_loss[-1]) == self.known_loss
        ((held, number),) = self.opened.items()
        return outputs == 1 and held() is not None and root._sequence_nr() - number == operations

    def knows(self, root: Any, path: Any) -> bool:
        """Whether the loss was walked before, and need not be walked in this step."""
        if self.known_loss is None or self.signs_of(root, path) != self.known_loss:
            self.budget.restart()
            return False
        if self.budget.due or self.loss_recheck.suspicious:
            return False
        self.loss_recheck.calls += 1
        return True

    def matches_known(self, root: Any) -> bool:
        """Whether the loss has as many operations as the known one, in a step without a check."""
        budget = self.budget
        if self.known_loss is None or budget.looks or budget.due or self.loss_recheck.suspicious:
            return False
        if not self._is_known(root):
            return False
        self.loss_recheck.calls += 1
        return True

    def arrive(self, output: Output, grad: Tensor) -> None:
        """Compare all ranks as a gradient reaches an output, and start the sum; a collective call.

        Raises:
            InputError: A rank's loss cannot be weighted, or the ranks differ; raised on all ranks.
        """
        if self.reducer.active and output.fed:
            return
        fault = 0
        if self.budget.due:
            with self.budget.spending():
                fault, misses = output.fault(grad)
            # Rows drawn with replacement leave some out, and so does a hinge.
            self.loss_recheck.suspicious |= misses
        self._agree(output, fault)
        if not self.reducer.active:
            self._begin()

    def _agree(self, output: Output, fault: int) -> None:
        examination = output.examination
        code = 3 if examination is None else examination.code
        if fault and code in (0, *_LESS_PLAIN):
            code = fault
        row = [0] * _FIELDS
        row[_FAULT], row[_STEP], row[_EXCHANGES] = code, self.steps, self.exchanges
        row[_PARAMETERS], row[_PROOF] = self._checksum(), int(self.wants_proof)
        row[_SPACING] = self.budget.wanted()
        if examination is not None:
            row[_PLAIN] = _bits(examination.plain if output.contract.trains else float("nan"))
            row[_DECLARED], row[_PENALTY] = _bits(examination.declared), _bits(examination.penalty)
        rows = torch.zeros(self.transport.world_size, _FIELDS, dtype=torch.int64)
        rows[self.transport.rank] = torch.tensor(row)
        self.transport.all_reduce(rows, f"the agreement on the loss of step {self.steps}")
        table = rows.tolist()
        if code or any(row[:_SPACING] != table[0][:_SPACING] for row in table):
            told = "" if examination is None or code != examination.code else examination.detail
            self._refuse_faults(table, told)
            self._refuse_differences(table)
        self.wants_proof = any(r[_PROOF] for r in table)
        self.spacing = min(r[_SPACING] for r in table)

    def _checksum(self) -> int:
        if not self.budget.due:
            return self.replicas.checksum(self.budget.turn, briefly=True) if self.budget.looks else 0
        with self.budget.spending():
            return self.replicas.checksum(self.steps)

    def _refuse_faults(self, table: list[list[int]], detail: str) -> None:
        for rank, row in enumerate(table):
            if row[_FAULT]:
                mine = f" [it {detail}]" if detail and rank == self.transport.rank else ""
                raise InputError(f"the loss of rank {rank} {FAULTS[row[_FAULT]]}{mine}")

    def _refuse_differences(self, table: list[list[int]]) -> None:
        places = [(row[_STEP], row[_EXCHANGES]) for row in table]
        if len(set(places)) > 1:
            where = ", ".join(f"rank {rank} in step {step}" for rank, (step, _) in enumerate(places))
            raise InputError(
                f"ranks are in different steps, or their models made other exchanges in this one ({where}): expected "
                "the same calls of the model and of backward() on all ranks; draw what is left out (layers, steps) "
                "under one seed, and let ranks without training nodes call backward() too"
            )
        if len({row[_PARAMETERS] for row in table}) > 1:
            self.replicas.check("as they differ")
        for field, what in _ALIKE_PARTS.items():
            if len({row[field] for row in table}) == 1:
                continue
            values = [_float(row[field]) for row in table]
            kept = [value for value in values if value == value]
            if kept and max(kept) - min(kept) > _ALIKE * max(map(abs, kept)):
                shown = ", ".join(f"{value:.6g}" for value in values)
                raise InputError(
                    f"the loss {what} on each rank ({shown}); expected the same constants on all ranks, and rows of "
                    "nodes in models only: compute what depends on outputs by job.mean(values, mask)"
                )

    def _begin(self) -> None:
        """Prepare for a back-propagation, at the first output that it reaches."""
        claim(list(self.guard.names.values()), self.reducer)
        self.reached.clear()
        trained = (self.guard.names[name] for name in self.guard.trained)
        self.before = {p: p.grad.clone() for p in trained if p.grad is not None}
        self.reducer.begin()
        torch.autograd.Variable._execution_engine.queue_callback(self._finish)

    def _reach(self, parameter: nn.Parameter) -> None:
        if self.reducer.active:
            self.reached.add(parameter)

    def _finish(self) -> None:
        self.steps += 1
        self.opened.clear()
        self.budget.advance(self.spacing)
        self.exchanges = 0
        self.reducer.finish()
        for parameter, gradient in self.before.items():
            parameter.grad.add_(gradient)  # type: ignore[union-attr]
        parameters = list(self.guard.names.values())
        reached = torch.tensor([parameter in self.reached for parameter in parameters], dtype=torch.int64)
        self.transport.all_reduce(reached, f"parameters that have a gradient in step {self.steps - 1}")
        for parameter, ranks in zip(parameters, reached.tolist(), strict=True):
            # A gradient of zeros is not none: optimizers decay what has one.
            if not ranks and parameter.requires_grad and parameter not in self.before:
                parameter.grad = None
        self.before = {}
        if not int(reached.sum()):
            raise InputError(
                "no parameter of the distributed model was given a gradient, as by torch.autograd.grad, which returns "
                "the part of this rank only; expected loss.backward(), after which p.grad holds the sums over ranks"
            )


def _bits(value: float) -> int:
    return int(struct.unpack("<q", struct.pack("<d", value))[0])


def _float(bits: int) -> float:
    return float(struct.unpack("<d", struct.pack("<q", bits))[0])
