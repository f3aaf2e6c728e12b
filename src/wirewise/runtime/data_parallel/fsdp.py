"""Compressed reduce-scatter for models sharded by torch's FSDP2 (`fully_shard`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp._fully_shard._fsdp_api import ReduceScatter

from wirewise.codec.gradients import GradientCodec, Segments, make
from wirewise.errors import InputError
from wirewise.runtime.transport import Transport

__all__ = ["ShardedCompression", "compress_fsdp"]

_BLOCK = 2048


def compress_fsdp(
    model: nn.Module,
    codec: str,
    *,
    options: Mapping[str, Any] | None = None,
    block: int = _BLOCK,
    feedback: bool = True,
    seed: int = 0,
    timeout_s: float = 120.0,
) -> ShardedCompression:
    """Make every sharded module of a model reduce-scatter its gradients as codec payloads.

    Each rank encodes the shard of each other rank, sends it, and sums in float32 what it receives for its own; the
    unsent remainder is added to the next gradient. Parameters are gathered as before.

        for layer in model.layers:
            fully_shard(layer)
        fully_shard(model)
        state = compress_fsdp(model, "int8")

    Args:
        model: Model after `fully_shard`.
        codec: Name of a gradient codec of one round whose payloads need not be the same on all ranks.
        options: Options of the codec.
        block: Elements with a common scale, norm or k; parameter boundaries are unknown here.
        feedback: Whether to keep a residual, if the codec has one.
        seed: Seed of random rounding and selection.
        timeout_s: Timeout of a message, in seconds.

    Raises:
        InputError: There is no sharded module, or the codec is unsupported.
    """
    modules = {name: module for name, module in model.named_modules() if isinstance(module, FSDPModule)}
    if not modules:
        raise InputError(
            f"{type(model).__name__} has no sharded module; call torch.distributed.fsdp.fully_shard on it first"
        )
    made = make(codec, **(options or {}))
    if made.rounds > 1 or made.memory not in (None, "residual") or len(made.memories) > 1:
        raise InputError(
            f"codec {codec!r} takes several rounds, or remembers more than a residual; expected one such as int8, "
            "efsign or topk"
        )
    comms = {}
    for name, module in modules.items():
        comms[name] = _Compressed(made, block, feedback, seed, timeout_s)
        module.set_custom_reduce_scatter(comms[name])
    return ShardedCompression(comms)


class ShardedCompression:
    """Result of `compress_fsdp`: statistics, and error-feedback state."""

    def __init__(self, comms: dict[str, _Compressed]) -> None:
        self._comms = comms

    @property
    def bytes_sent(self) -> int:
        """Gradient bytes sent by this rank so far."""
        return sum(comm.sent_bytes for comm in self._comms.values())

    def state_dict(self) -> dict[str, Any]:
        """Residuals of this rank and its step count, by module name; for checkpoints with the same number of ranks."""
        return {
            name: {"step": comm.step, "residual": None if comm.residual is None else comm.residual.clone()}
            for name, comm in self._comms.items()
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the state of this rank.

        Raises:
            InputError: The state is of other sharded modules; nothing is changed then. A state of another number of
                ranks is refused in the next step.
        """
        if state.keys() != self._comms.keys():
            other = sorted(state.keys() ^ self._comms.keys())
            raise InputError(f"the state differs in modules {other[:5]}; load it into the same sharded model")
        for name, own in state.items():
            comm = self._comms[name]
            comm.step = int(own["step"])
            comm.residual = None if own["residual"] is None else own["residual"].clone()


class _Compressed(ReduceScatter):
    """The reduce-scatter of one sharded module."""

    def __init__(self, codec: GradientCodec, block: int, feedback: bool, seed: int, timeout_s: float) -> None:
        self._codec, self._block, self._seed, self._timeout_s = codec, block, seed, timeout_s
        self._feedback = feedback and codec.memory is not None
        self._segments: Segments | None = None
        self._transport: Transport | None = None
        self.residual: Tensor | None = None
        """[ranks, elements of a share]."""
        self.step = self.sent_bytes = 0

    def allocate(self, size: Sequence[Any], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """A buffer for what is exchanged."""
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: dist.ProcessGroup,
        op: Any,
        async_op: bool = False,
    ) -> None:
        """Sum (or mean) over the ranks of this rank's share, [elements]; other ranks' shares are sent."""
        ranks = group.size()
        rows = input_tensor.detach().view(ranks, -1).float()
        sums = str(op).upper()
        if "SUM" not in sums and "AVG" not in sums:
            raise InputError(f"gradients are to be reduced by {op}; expected a sum or a mean")
        payloads = self._encode(rows, dist.get_rank(group))
        came = self._exchange(payloads, group)
        total = torch.empty_like(rows[0])
        scale = 1 / ranks if "AVG" in sums else 1.0
        assert self._segments is not None
        self._codec.decode_sum(came, self._segments, total, scale=scale, seed=self._seed, step=self.step)
        output_tensor.copy_(total)
        self.step += 1

    def _encode(self, rows: Tensor, rank: int) -> Tensor:
        """Payloads for all ranks, uint8 [ranks, bytes]."""
        if self._segments is None or self._segments.total != rows.shape[1]:
            self._segments = Segments([rows.shape[1]], block=self._block)
        if self._feedback and self.residual is None:
            self.residual = torch.zeros_like(rows)
        if self.residual is not None and self.residual.shape != rows.shape:
            raise InputError(
                f"the state holds residuals of {tuple(self.residual.shape)} (ranks, elements), the job has "
                f"{tuple(rows.shape)}; load the state of as many ranks and the same model, or none"
            )
        out = torch.empty(
            len(rows), self._codec.size_bytes(self._segments), dtype=torch.uint8, device=rows.device
        )
        for target, row in enumerate(rows):
            memory = None if self.residual is None else self.residual[target]
            draws: dict[str, Any] = {"seed": self._seed, "step": self.step, "rank": rank}
            self._codec.encode(row.contiguous(), memory, self._segments, out[target], **draws)
        return out

    def _exchange(self, payloads: Tensor, group: dist.ProcessGroup) -> Tensor:
        if self._transport is None:
            self._transport = Transport(group, timeout_s=self._timeout_s)
        came, lend = torch.empty_like(payloads), self._transport.lend
        what = "the reduce-scatter of gradients"
        self._transport.complete(lambda: group.alltoall_base(lend(came), lend(payloads), [], []), what)
        self.sent_bytes += payloads.nbytes - payloads[0].nbytes
        return came
