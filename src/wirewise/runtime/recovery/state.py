"""State from which a rank can resume at a step, and its copy from ranks that have it.

It has two parts. The shared one is the same on all replicas: parameters, optimizers, schedules, scaler, and what the
user names. A replacement copies it from the replicas, a stripe from each. The own part differs between ranks: buffers
such as BatchNorm statistics, random generators, the position in the data, error-feedback state. No replica has it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Literal, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from wirewise.errors import InputError
from wirewise.runtime.pipeline.dtensors import local_part, with_part
from wirewise.runtime.recovery.attributes import Attributes, decoded, encode_value
from wirewise.runtime.transport import PendingExchange, Transport, transport_of
from wirewise.runtime.trees import Tree, copy_into, digest_of, pack, raw_bytes, unpack

__all__ = ["Stateful", "TrainingState", "copy_state", "copy_tree"]

_PIECE_BYTES, _LEAST_PIECE_BYTES = 2**24, 2**16
_TAG = 0x5EC0


class Stateful(Protocol):
    """Object whose state can be saved and loaded, such as a sampler's position or `data_parallel.Pools`."""

    def state_dict(self) -> Mapping[str, Any]:
        """State as nested dictionaries, lists, tensors, numbers and strings."""
        ...

    def load_state_dict(self, state: Any, /) -> Any:
        """Load a state."""
        ...


class TrainingState:
    """State of a training on this rank.

    Args:
        model: Model; a wrapper's parameters count under the wrapper's names, the same on all ranks.
        optimizers: One or several optimizers of its parameters.
        schedulers: Schedules of the learning rates.
        scaler: `torch.amp.GradScaler`. None if there is none.
        shared: Further objects whose state is the same on all replicas, by name.
        own: Further objects whose state differs between ranks, by name: a sampler, error-feedback pools.
        buffers: Whether the model's buffers are the same on all replicas ("shared") or not ("own").
    """

    def __init__(
        self,
        model: nn.Module,
        optimizers: Optimizer | Sequence[Optimizer],
        *,
        schedulers: Sequence[LRScheduler] = (),
        scaler: Stateful | None = None,
        shared: Mapping[str, Stateful] | None = None,
        own: Mapping[str, Stateful] | None = None,
        buffers: Literal["own", "shared"] = "own",
    ) -> None:
        self.model = model
        self.optimizers = [optimizers] if isinstance(optimizers, Optimizer) else list(optimizers)
        self.schedulers, self.scaler, self.buffers = list(schedulers), scaler, buffers
        self._shared, self._own = dict(shared or {}), dict(own or {})
        for name, parameter in model.named_parameters():
            if hasattr(parameter, "to_local"):
                raise InputError(
                    f"parameter {name!r} is a {type(parameter).__name__}, sharded over ranks; expected whole ones, as "
                    "before fully_shard: give the function that shards the model as protect(sync=Shards(function, "
                    "replicas=2))"
                )
        self._modules = {name or "model": one for name, one in model.named_modules()}
        owners = {_name_of(number, one): one for number, one in enumerate(self.optimizers)}
        self.attributes = Attributes({**self._modules, **owners})
        known = set(model.parameters())
        for optimizer in self.optimizers:
            if any(
                parameter not in known for group in optimizer.param_groups for parameter in group["params"]
            ):
                raise InputError(
                    f"{type(optimizer).__name__} has a parameter that the model has not; expected optimizers of the "
                    "model's parameters"
                )

    def parameter_state(self) -> Tree:
        """Parameters and their optimizer state, this rank's shards: references, not copies."""
        return {
            "parameters": self.parameters(),
            "optimizers": [
                [
                    [_parts(one.state[p]) if p in one.state else {} for p in group["params"]]
                    for group in one.param_groups
                ]
                for one in self.optimizers
            ],
        }

    def light(self) -> Tree:
        """Parameters and their optimizer state, this rank's shards, by reference."""
        groups = [
            [{key: value for key, value in group.items() if key != "params"} for group in one.param_groups]
            for one in self.optimizers
        ]
        return {
            "groups": groups,
            "schedulers": [one.state_dict() for one in self.schedulers],
            "scaler": None if self.scaler is None else self.scaler.state_dict(),
            "named": {name: one.state_dict() for name, one in self._shared.items()},
            "buffers": self._buffers() if self.buffers == "shared" else {},
            "optimizers": [_beside_parameters(one) for one in self.optimizers],
            "modules": self._extra_states(),
            "frozen": [name for name, one in self.model.named_parameters() if not one.requires_grad],
            "attributes": self.attributes.state(),
        }

    def parts(self) -> dict[str, Tree]:
        """Replicated state other than parameters and their averages, by its names in messages."""
        tree = self.replicated_state()
        found: dict[str, Tree] = {f"buffer {name!r}": one for name, one in tree["buffers"].items()}
        found.update({f"objects[{name!r}]": one for name, one in tree["named"].items()})
        found.update({f"extra state of {name!r}": one for name, one in tree["modules"].items()})
        for number, one in enumerate(self.optimizers):
            name = _name_of(number, one)
            found[f"param_groups of {name}"] = tree["groups"][number]
            found[f"state of {name} beside parameters"] = tree["optimizers"][number]
        for number, schedule in enumerate(self.schedulers):
            found[f"scheduler {number} ({type(schedule).__name__})"] = tree["schedulers"][number]
        for owner, values in tree["attributes"].items():
            found.update({f"attribute {name!r} of {owner}": one for name, one in values.items()})
        return {**found, "scaler": tree["scaler"], "frozen parameters": tree["frozen"]}

    def replicated_state(self) -> Tree:
        """Replicated state other than parameters and their averages, by its names in messages."""
        return {**self.light(), "attributes": self.attributes.of(Optimizer)}

    def shared(self) -> Tree:
        """State shared by all replicas; tensors are references if the objects return these."""
        return {"heavy": self.parameter_state(), "light": self.light()}

    def own(self) -> Tree:
        """State of this rank alone."""
        return {
            "buffers": self._buffers() if self.buffers == "own" else {},
            "random": _random_state(),
            "named": {name: one.state_dict() for name, one in self._own.items()},
        }

    @torch.no_grad()
    def load_parameter_state(self, tree: Tree) -> None:
        """Load parameters and their optimizer state, in place if possible.

        Raises:
            InputError: The state does not fit the model or the optimizers; the message names the first difference.
        """
        _fill("parameter", self.parameters(), tree["parameters"])
        for one, groups in zip(self.optimizers, tree["optimizers"], strict=True):
            for group, states in zip(one.param_groups, groups, strict=True):
                for parameter, state in zip(group["params"], states, strict=True):
                    _take(one, parameter, state)

    def load_replicated_state(self, tree: Tree) -> None:
        """Load the rest of the shared part."""
        for one, groups in zip(self.optimizers, tree["groups"], strict=True):
            for group, settings in zip(one.param_groups, groups, strict=True):
                group.update(settings)
        for schedule, state in zip(self.schedulers, tree["schedulers"], strict=True):
            schedule.load_state_dict(state)
        if self.scaler is not None:
            self.scaler.load_state_dict(tree["scaler"])
        _load_named(self._shared, tree["named"])
        self.load_buffers(tree["buffers"])
        for one, state in zip(self.optimizers, tree["optimizers"], strict=True):
            _load_beside_parameters(one, state)
        for name, state in tree["modules"].items():
            self._modules[name].set_extra_state(
                decoded(copy_into(state), self._modules[name].get_extra_state())
            )
        for name, parameter in self.model.named_parameters():
            if parameter.requires_grad == (name in tree["frozen"]):
                parameter.requires_grad_(name not in tree["frozen"])
        self.attributes.load(tree["attributes"])

    def load_buffers(self, buffers: Mapping[str, Tensor]) -> None:
        """Load the model's buffers, if they belong to the shared part."""
        if self.buffers == "shared":
            _fill("buffer", dict(self.model.named_buffers()), buffers)

    def load_shared(self, tree: Tree) -> None:
        """Load the result of `shared` of this or another rank."""
        self.load_parameter_state(tree["heavy"])
        self.load_replicated_state(tree["light"])

    def load_own(self, tree: Tree) -> None:
        """Load the result of `own`."""
        if self.buffers == "own":
            _fill("buffer", dict(self.model.named_buffers()), tree["buffers"])
        _load_named(self._own, tree["named"])
        _set_random_state(tree["random"])

    def state_dict(self) -> Tree:
        """Both parts, for a checkpoint of this rank."""
        return {"shared": self.shared(), "own": self.own()}

    def load_state_dict(self, state: Tree) -> None:
        """Load the result of `state_dict`.

        Raises:
            InputError: The state does not fit; the message names the first difference.
        """
        try:
            self.load_shared(state["shared"])
            self.load_own(state["own"])
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            raise InputError(
                f"the state does not fit this training: {type(error).__name__}: {error}; expected one of the same "
                "model, optimizers, schedules and named objects"
            ) from error

    def digest(self) -> str:
        """Digest of the shared part, sixteen hex digits, equal on bit-identical replicas."""
        return digest_of({"heavy": self.parameter_state(), "light": self.replicated_state()})

    def parameters(self) -> dict[str, Tensor]:
        """Parameters by name, this rank's shards."""
        return {name: local_part(p) for name, p in self.model.named_parameters()}

    def _extra_states(self) -> dict[str, Tree]:
        """Extra states of modules that define one."""
        plain = nn.Module.get_extra_state
        return {
            name: encode_value(one.get_extra_state())
            for name, one in self._modules.items()
            if type(one).get_extra_state is not plain
        }

    def _buffers(self) -> dict[str, Tensor]:
        return {name: buffer.detach() for name, buffer in self.model.named_buffers()}


def copy_state(
    state: TrainingState,
    group: dist.ProcessGroup | Transport | None,
    sources: Sequence[int],
    targets: Sequence[int],
    timeout_s: float,
    *,
    fresh: Collection[int] = (),
) -> None:
    """Copy the shared part from source ranks to targets: each source sends an equal part of the bytes to each target.

    All sources and targets call it with the same arguments; for other ranks it does nothing.

    Args:
        state: State of this rank; that of a target is overwritten.
        group: Ranks of the job.
        sources: Ranks with the required state, bit-identical (`digest`).
        targets: Ranks that receive it.
        timeout_s: Timeout of a message, in seconds.
        fresh: Newly started targets, which also get the first source's own part as a placeholder until theirs is
            loaded (`TrainingState.load_own`).

    Raises:
        InputError: There is no source, a rank is both, or the state does not fit the target's model.
        PeerError: A peer is gone; the copy to a target must then be repeated.
    """
    if not sources or set(sources) & set(targets) or len({*sources, *targets}) < len(sources) + len(targets):
        raise InputError(
            f"got sources {list(sources)} and targets {list(targets)}; expected ranks, each once"
        )
    if not set(fresh) <= set(targets):
        raise InputError(f"got fresh {sorted(fresh)}; expected some of the targets {list(targets)}")
    transport = transport_of(group, timeout_s=timeout_s)
    found = copy_tree(state.shared, transport, sources, targets)
    if found is not None:
        state.load_shared(found)
    new = [rank for rank in targets if rank in fresh]
    stand_in = copy_tree(state.own, transport, sources[:1], new) if new else None
    if stand_in is not None:
        state.load_own(stand_in)


def copy_tree(
    tree: Callable[[], Tree], transport: Transport, sources: Sequence[int], targets: Sequence[int]
) -> Tree | None:
    """Copy a tree from source ranks to targets, as `copy_state` does. None on other ranks."""
    rank = transport.rank
    if rank in sources:
        frame, tensors = pack(tree())
        if rank == sources[0]:
            _send(transport, targets, "the size of the state", torch.tensor([len(frame)]))
            _send(transport, targets, "the frame of the state", _bytes_of(frame))
        _send_share(transport, sources, targets, tensors)
    if rank not in targets:
        return None
    size = torch.zeros(1, dtype=torch.int64)
    _receive(transport, sources[0], "the size of the state", size)
    frame_bytes = torch.empty(int(size), dtype=torch.uint8)
    _receive(transport, sources[0], "the frame of the state", frame_bytes)
    return unpack(frame_bytes.numpy().tobytes(), lambda buffers: _fill_from(transport, sources, buffers))


def _send_share(
    transport: Transport, sources: Sequence[int], targets: Sequence[int], tensors: Sequence[Tensor]
) -> None:
    """Send the pieces that are this source's; while one travels the next is put together."""
    travelling: PendingExchange | None = None
    for number, spans in enumerate(_spans(tensors, len(sources))):
        if number % len(sources) != sources.index(transport.rank):
            continue
        piece = spans[0] if len(spans) == 1 else torch.cat(spans)
        exchange = transport.open(f"piece {number} of the state", _TAG, {})
        for target in targets:
            exchange.send(target, piece)
        exchange.launch()
        if travelling is not None:
            travelling.wait_sends()
        travelling = exchange
    if travelling is not None:
        travelling.wait_sends()


def _fill_from(transport: Transport, sources: Sequence[int], buffers: list[Tensor]) -> None:
    """Receive all tensors; pieces of the sources travel beside each other, and the next ones while these are copied."""
    pieces = list(_spans(buffers, len(sources)))
    waiting: tuple[PendingExchange, list[tuple[int, list[Tensor], Tensor]]] | None = None
    for first in range(0, len(pieces) + len(sources), len(sources)):
        before, waiting = waiting, None
        if first < len(pieces):
            wanted = [
                (source, piece, torch.empty(sum(map(len, piece)), dtype=torch.uint8))
                for source, piece in zip(sources, pieces[first : first + len(sources)], strict=False)
            ]
            received = {source: data for source, _, data in wanted}
            waiting = transport.open(f"pieces {first} and following of the state", _TAG, received), wanted
            waiting[0].launch()
        if before is not None:
            exchange, arrived = before
            for _ in exchange.arrivals():
                pass
            for _, piece, data in arrived:
                for span, part in zip(piece, data.split([len(span) for span in piece]), strict=True):
                    span.copy_(part)


def _send(transport: Transport, targets: Sequence[int], label: str, data: Tensor) -> None:
    exchange = transport.open(label, _TAG, {})
    for target in targets:
        exchange.send(target, data)
    exchange.launch()
    exchange.wait_sends()


def _receive(transport: Transport, source: int, label: str, data: Tensor) -> None:
    transport.exchange(label, _TAG, {}, {source: data})


def _spans(tensors: Sequence[Tensor], sources: int) -> Iterator[list[Tensor]]:
    """Views of the bytes of all tensors, in order, in pieces of at most 16 MiB; at least two from each source."""
    total = sum(tensor.nbytes for tensor in tensors)
    size = min(max(-(-total // (2 * sources)), _LEAST_PIECE_BYTES), _PIECE_BYTES)
    held, room = list[Tensor](), size
    for tensor in tensors:
        left = raw_bytes(tensor)
        while left.numel():
            held.append(left[:room])
            left, room = left[room:], room - len(held[-1])
            if not room:
                yield held
                held, room = [], size
    if held:
        yield held


def _fill(label: str, own: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> None:
    """Copy tensors by name.

    Raises:
        InputError: Other names, shapes or types; then nothing was changed.
    """
    for name in [*own, *given]:
        mine, theirs = own.get(name), given.get(name)
        if mine is None or theirs is None or (mine.shape, mine.dtype) != (theirs.shape, theirs.dtype):
            told = [
                "none" if one is None else f"{str(one.dtype).removeprefix('torch.')} {list(one.shape)}"
                for one in (theirs, mine)
            ]
            raise InputError(
                f"{label} {name!r} is {told[0]} in the state and {told[1]} here; give all ranks one model"
            )
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.detach().copy_(given[name])


def _take(optimizer: Optimizer, parameter: Tensor, state: Mapping[str, Any]) -> None:
    """Make the state of a parameter that of another rank, bit by bit.

    `Optimizer.load_state_dict` would cast averages to the type of the parameter.
    """
    if not state:
        optimizer.state.pop(parameter, None)
        return
    own = optimizer.state[parameter]
    for name in [name for name in own if name not in state]:
        del own[name]
    for name, value in state.items():
        held = own.get(name)
        if not isinstance(value, Tensor):
            own[name] = value
        elif isinstance(held, Tensor) and _like(local_part(held), value):
            local_part(held).copy_(value)
        else:
            # Counts of steps stay on the CPU unless the optimizer is to be captured.
            moved = value.to(parameter.device, copy=True)
            own[name] = value.clone() if value.dim() == 0 else with_part(moved, parameter)


def _parts(state: Mapping[str, Any]) -> dict[str, Any]:
    """State of a parameter, this rank's part of tensors."""
    return {name: local_part(one) if isinstance(one, Tensor) else one for name, one in state.items()}


def _like(held: Tensor, value: Tensor) -> bool:
    return (held.shape, held.dtype) == (value.shape, value.dtype)


def _name_of(number: int, optimizer: Optimizer) -> str:
    return f"optimizer {number} ({type(optimizer).__name__})"


def _beside_parameters(optimizer: Optimizer) -> dict[Any, Tree]:
    """Entries of an optimizer's state that belong to no parameter, such as a count."""
    return {key: encode_value(one) for key, one in optimizer.state.items() if not isinstance(key, Tensor)}


def _load_beside_parameters(optimizer: Optimizer, state: Mapping[Any, Tree]) -> None:
    held: Any = optimizer.state
    for key in [key for key in held if not isinstance(key, Tensor) and key not in state]:
        del held[key]
    for key, one in state.items():
        held[key] = decoded(copy_into(one), held.get(key))


def _load_named(objects: Mapping[str, Stateful], states: Mapping[str, Any]) -> None:
    if objects.keys() != states.keys():
        raise InputError(
            f"the state has the objects {sorted(states)}; expected {sorted(objects)}: give the same ones on all ranks"
        )
    for name, one in objects.items():
        one.load_state_dict(states[name])


def _random_state() -> Tree:
    found: dict[str, Any] = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_initialized():
        found["cuda"] = torch.cuda.get_rng_state()
    return found


def _set_random_state(state: Tree) -> None:
    torch.set_rng_state(state["cpu"])
    if "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"])


def _bytes_of(data: bytes) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)
