"""Replicated shards of torch's FSDP2: one module and one optimizer continue over the groups of each generation.

Ranks stand in rows: a row is a replica of the model, whose ranks have a shard each; a column has the replicas of one
shard. Meshes of DTensors know their process groups by name, and parameter groups of `fully_shard` as attributes. Every
generation makes its groups in the same order, so that they have the names of those before, and sets the attributes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp._fully_shard._fsdp_collectives import DefaultReduceScatter
from torch.distributed.tensor import DTensor
from torch.optim import SGD, Adam, AdamW, RMSprop

from wirewise.errors import InputError
from wirewise.runtime.pipeline.dtensors import local_part
from wirewise.runtime.recovery.state import TrainingState
from wirewise.runtime.recovery.sync import Shards
from wirewise.runtime.transport import Transport
from wirewise.runtime.trees import digest_of

__all__ = ["ShardGroups"]

_CONNECT_S = 10.0
"""Seconds that the groups of some ranks have to connect."""
_ELEMENTWISE = (SGD, Adam, AdamW, RMSprop)
"""Optimizers whose update of an element needs no other element, so none that another rank has."""


class ShardGroups:
    """Shards of a training, and their groups in the current generation.

    Args:
        way: Function that shards the model, and number of ranks that hold each shard.
        clip: Maximum norm of all gradients together. None for no clipping.

    Attributes:
        width: Number of shards, each on every `width`-th rank; 1 before the first `connect`.
        built: Digest of the model before sharding.

    Raises:
        InputError: This version of torch cannot continue after an interrupted pass.
    """

    def __init__(self, way: Shards, clip: float | None = None) -> None:
        if not hasattr(FSDPModule, "reset_iter_state"):
            raise InputError(
                f"torch {torch.__version__} cannot go on after an interrupted pass of FSDP2; expected 2.13 or newer"
            )
        self.width, self.built = 1, ""
        self._shard, self._replicas, self._clip = way.shard, way.replicas, clip
        self._mesh: DeviceMesh | None = None
        self._model: Any = None

    def check(self, state: TrainingState) -> None:
        """Raise for a training that cannot be sharded.

        Raises:
            InputError: Parameters are not on the CPU, there is a scaler, or an optimizer needs more than a shard or
                has state already.
        """
        if kinds := {p.device.type for p in state.model.parameters()} - {"cpu"}:
            raise InputError(
                f"got shard and parameters on {sorted(kinds)}; expected them on the CPU: groups that can be "
                "interrupted are gloo's, which has not all collectives of FSDP2 on other devices"
            )
        if state.scaler is not None:
            raise InputError(
                "got shard and a scaler; expected no scaler: its loss scale is not known on all ranks before the update"
            )
        for one in state.optimizers:
            if type(one) not in _ELEMENTWISE:
                raise InputError(
                    f"got shard and {type(one).__name__}; expected one of "
                    f"{', '.join(kind.__name__ for kind in _ELEMENTWISE)}, whose updates need no other rank"
                )
            if one.state:
                raise InputError(
                    f"got shard and {type(one).__name__} after an update; expected one that has made none"
                )

    def connect(
        self,
        state: TrainingState,
        transport: Transport,
        guard: Callable[[Iterable[dist.ProcessGroup]], None],
    ) -> bool:
        """Connect to the groups of this generation, a collective call; the first time, shard model and optimizers.

        Args:
            state: State of the training.
            transport: Transport between all ranks, over torch's default group.
            guard: Function that registers groups to be interrupted when a rank is lost.

        Returns:
            True if parameters are now other objects, as this was the first time.

        Raises:
            InputError: The ranks do not form that many replicas, or `shard` made changes that cannot be protected.
        """
        ranks = transport.world_size
        if ranks % self._replicas or ranks == self._replicas:
            raise InputError(
                f"got replicas={self._replicas} and {ranks} ranks; expected a multiple of {self._replicas}, twice at "
                "least"
            )
        self.width = ranks // self._replicas
        places = torch.arange(ranks).view(self._replicas, self.width)
        replicate, shard = self._groups(transport, [*places.T.tolist(), *places.tolist()])
        guard([replicate, shard])
        if self._mesh is not None:
            self._go_on(replicate, shard)
            return False
        mesh = DeviceMesh.from_group(
            [replicate, shard], "cpu", mesh=places, mesh_dim_names=("replicate", "shard")
        )
        whole = dict(state.model.named_parameters())
        self.built = digest_of({**whole, **dict(state.model.named_buffers())})
        self._shard(state.model, mesh)
        self._model, self._mesh = state.model, mesh
        self._check_sharded()
        found = dict(state.model.named_parameters())
        new = {old: found[name] for name, old in whole.items()}
        for optimizer in state.optimizers:
            for group in optimizer.param_groups:
                group["params"] = [new[parameter] for parameter in group["params"]]
        return True

    def complete_gradients(self, transport: Transport) -> None:
        """Complete the gradients of a step by clipping their norm; parameters are sharded afterwards.

        Raises:
            PeerError: A peer is gone.
        """
        for module in self._modules():
            module.reshard()
        if self._clip is None:
            return
        gradients = [local_part(p.grad) for p in self._model.parameters() if p.grad is not None]
        own = nn.utils.get_total_norm(gradients).double().square().view(1)
        squares = transport.all_gather(own, "the norms of shards")
        norm = float(torch.cat(squares[: self.width]).sum().sqrt())
        for gradient in gradients:
            gradient.mul_(min(1.0, self._clip / (norm + 1e-6)))

    def release(self) -> None:
        """Release the groups, and state left by an interrupted pass."""
        if self._mesh is None:
            return
        for group in self._parameter_groups():
            # Waiting for a collective of a group that is gone would raise.
            group._all_gather_result = None
            for one in group.fsdp_params:
                # What backward had added up so far would be added to the gradient of the next pass.
                one.unsharded_accumulated_grad = None
                if hasattr(one, "_unsharded_param"):
                    one._unsharded_param.grad = None
            group.mesh_info.shard_process_group = group.mesh_info.replicate_process_group = None
        if self._model._get_fsdp_state()._is_root is not None:
            # The first pass makes what there is to reset.
            self._model.reset_iter_state()
        self._mesh._pg_registry.clear()

    def _groups(
        self, transport: Transport, wanted: Sequence[list[int]]
    ) -> tuple[dist.ProcessGroup, dist.ProcessGroup]:
        """Groups of this rank's column and row."""
        own: list[Any] = []
        for members in wanted:
            group: Any = dist.new_group(members, timeout=timedelta(seconds=_CONNECT_S))
            if transport.rank in members:
                dist.distributed_c10d._set_pg_timeout(transport.timeout, group)
                own.append(group)
        return own[0], own[1]

    def _go_on(self, replicate: dist.ProcessGroup, shard: dist.ProcessGroup) -> None:
        assert self._mesh is not None
        names = [replicate.group_name, shard.group_name]
        if names != self._mesh._dim_group_names:
            raise InputError(
                f"the groups of this generation are named {names}, those before {self._mesh._dim_group_names}; make no "
                "process groups besides those of the training"
            )
        self._mesh._pg_registry.update(zip(names, (replicate, shard), strict=True))
        for group in self._parameter_groups():
            group.mesh_info.replicate_process_group = replicate
            group.mesh_info.shard_process_group = shard

    def _check_sharded(self) -> None:
        """Raise for what `shard` did that a recovery would not bring back."""
        if not isinstance(self._model, FSDPModule):
            raise InputError(
                "shard did not call fully_shard on the model itself; expected that, after its modules"
            )
        root: nn.Module = self._model  # type: ignore[assignment]
        for name, parameter in root.named_parameters():
            if not isinstance(parameter, DTensor) or parameter.device_mesh != self._mesh:
                raise InputError(
                    f"shard left parameter {name!r} without shards on the mesh that it was given; expected "
                    "fully_shard(module, mesh=mesh), and no ignored parameters"
                )
        for group in self._parameter_groups():
            own = group.mesh_info
            if (
                group.post_forward_mesh_info not in (None, own)
                or own.reduce_scatter_process_group is not None
            ):
                raise InputError(
                    "shard made process groups of its own; expected reshard_after_forward of True or False, and no "
                    "separate group for reduce-scatter"
                )
            if type(group._reduce_scatter_comm) is not DefaultReduceScatter:
                raise InputError(
                    "shard set another reduce-scatter, such as compress_fsdp does; expected torch's: what codecs "
                    "remember is on one rank alone"
                )

    def _modules(self) -> Iterator[FSDPModule]:
        return (module for module in self._model.modules() if isinstance(module, FSDPModule))

    def _parameter_groups(self) -> Iterator[Any]:
        for module in self._modules():
            yield from module._get_fsdp_state()._fsdp_param_groups
