"""Gradients of one back-propagation through distributed models: agreed on, summed over ranks, added to those before."""

from __future__ import annotations

import struct

import torch
from torch import Tensor, nn

from wirewise.errors import InputError
from wirewise.integrations.pyg.examination import FAULTS
from wirewise.integrations.pyg.losses import Output
from wirewise.integrations.pyg.parameters import ParameterGuard, claim
from wirewise.integrations.pyg.replicas import Replicas
from wirewise.integrations.pyg.watch import Recheck
from wirewise.runtime import full_graph
from wirewise.runtime.data_parallel import Reducer
from wirewise.runtime.data_parallel.hooks import WeakHook

__all__ = ["GradientSum"]

_FAULT, _STEP, _EXCHANGES, _PARAMETERS, _PLAIN, _DECLARED, _PENALTY, _PROOF, _FIELDS = range(9)
"""Fields of what each rank tells all others when a gradient reaches the outputs, int64."""
_LESS_PLAIN = (4, 5)
"""Faults that are told only where the gradient reaches no nodes outside train_mask, which says more."""
_ALIKE_PARTS = {
    _PLAIN: "gives a mean over training nodes another weight",
    _DECLARED: "gives a result of job.mean or job.sum another weight",
    _PENALTY: "has a part without outputs, such as a penalty on parameters, that has another gradient",
}
"""Values that have to be equal on all ranks, by their field."""
_ALIKE = 1e-5
"""Relative difference of weights that rounding explains: 1 / n of ranks with other n is off by 1e-7 in float32."""


class GradientSum:
    """Sums gradients over ranks, and compares ranks in the one small all-reduce before that.

    Args:
        module: The distributed copy, or a list of several.
        transport: Messages between the ranks.
        bits: Width of gradients between the ranks.
        prove_every: Back-propagations between two proofs that the loss reads rows by themselves.
    """

    def __init__(
        self, module: nn.Module, transport: full_graph.Transport, bits: int, prove_every: int
    ) -> None:
        self.transport = transport
        self.guard = ParameterGuard(module, (GradientSum, Reducer))
        self.replicas = Replicas(module, transport)
        self.reducer = full_graph.gradient_reducer(module, transport, scale="mean", bits=bits)
        # A look takes some back-propagations of the loss alone.
        self.loss_recheck = Recheck(prove_every, freely=64)
        self.penalty_recheck = Recheck(prove_every)
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

    def arrive(self, output: Output, grad: Tensor) -> None:
        """Compare all ranks as a gradient reaches an output, and begin; a collective call.

        Raises:
            InputError: A rank's loss cannot be weighed, or the ranks differ; on all of them.
        """
        if self.reducer.active and output.fed:
            return
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
        row[_PARAMETERS], row[_PROOF] = self.replicas.checksum(self.steps), int(self.wants_proof)
        if examination is not None:
            row[_PLAIN] = _bits(examination.plain if output.contract.trains else float("nan"))
            row[_DECLARED], row[_PENALTY] = _bits(examination.declared), _bits(examination.penalty)
        rows = torch.zeros(self.transport.world_size, _FIELDS, dtype=torch.int64)
        rows[self.transport.rank] = torch.tensor(row)
        self.transport.all_reduce(rows, f"the agreement on the loss of step {self.steps}")
        table = rows.tolist()
        told = "" if examination is None or code != examination.code else examination.detail
        self._refuse_faults(table, told)
        self._refuse_differences(table)
        self.wants_proof = any(r[_PROOF] for r in table)

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
