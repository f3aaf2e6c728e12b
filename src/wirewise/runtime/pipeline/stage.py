"""Passes of one stage: forward, and backward whole or in two parts, with activations kept or recomputed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

import torch
from torch import Tensor, nn

from wirewise.errors import InputError
from wirewise.plans import StagePlan
from wirewise.rng import stream_key
from wirewise.runtime.pipeline.dtensors import plain_value
from wirewise.runtime.pipeline.layers import LayerGraph
from wirewise.runtime.pipeline.pass_state import PassState, PrePassState
from wirewise.runtime.pipeline.split_backward import SplitBackward

__all__ = ["LOSS", "OUTPUT", "MicrobatchKey", "StageCompute"]

LOSS, OUTPUT = "loss", "output of the model"
"""Names of the loss and of the model's output among the outputs of the last stage; a module may not have them."""

MicrobatchKey = tuple[int, int]
"""Update and microbatch in it."""

Loss = Callable[[Tensor, Tensor], Tensor]


class StageCompute:
    """Modules of one stage, and its microbatches between forward and backward pass.

    Random numbers of a module depend on the seed, the microbatch and the module alone, so dropout is the same in
    every timetable, for any partition into stages, and under recomputation.

    Args:
        layers: All modules of the model, including those of other stages.
        plan: Plan that names the modules of the stage.
        number: Index of the stage in the plan.
        loss: Mean loss over a microbatch, from the model's output and the targets.
        seed: Seed of random numbers in modules, such as dropout.
        replica: Index of the pipeline.
    """

    def __init__(
        self, layers: LayerGraph, plan: StagePlan, number: int, loss: Loss, seed: int, replica: int = 0
    ) -> None:
        self.number, self.recompute = number, plan.stages[number].recompute
        names = plan.stages[number].modules
        self.modules = {name: layers.modules[name] for name in names}
        self.takes = tuple(
            dict.fromkeys(s for name in names for s in layers.sources[name] if s not in self.modules)
        )
        """Values from other stages, and inputs of the model, in the order of their first use."""
        self.gives = tuple(
            name
            for name in names
            if any(name in sources and other not in self.modules for other, sources in layers.sources.items())
        )
        """Values that other stages take."""
        self.has_loss = layers.output in self.modules
        self._plan, self._replica = plan, replica
        self._inputs = frozenset(layers.inputs)
        self._sources, self._output, self._loss, self._seed = layers.sources, layers.output, loss, seed
        self._places = {name: place for place, name in enumerate(layers.names)}
        self._state = PassState(self.modules.values())
        self._changed: set[str] | None = None
        """Values from elsewhere that modules change in place; None if no microbatch has told yet."""
        self._elsewhere = {
            source
            for name, sources in layers.sources.items()
            if name not in self.modules
            for source in sources
        }
        self._held: dict[MicrobatchKey, _Held] = {}
        self._split: dict[MicrobatchKey, SplitBackward] = {}

    def of_stage(self, layers: LayerGraph, number: int) -> StageCompute:
        """Make the passes of another stage, or of this one again, with separate modules.

        Args:
            layers: All modules of the model, newly created.
            number: Index of the stage in the plan.
        """
        return StageCompute(layers, self._plan, number, self._loss, self._seed, self._replica)

    @property
    def device(self) -> torch.device:
        """Device of the stage's parameters; the CPU if it has none."""
        found = (p.device for module in self.modules.values() for p in module.parameters())
        return next(found, torch.device("cpu"))

    @property
    def in_flight(self) -> int:
        """Number of microbatches with kept activations."""
        return len(self._held) + len(self._split)

    def parameters(self) -> Iterator[nn.Parameter]:
        """Current trained parameters of the modules, without duplicates."""
        seen: set[nn.Parameter] = set()
        for module in self.modules.values():
            for parameter in module.parameters():
                if parameter.requires_grad and parameter not in seen:
                    seen.add(parameter)
                    yield parameter

    def forward(
        self, key: MicrobatchKey, values: Mapping[str, Tensor], target: Tensor | None, scale: float
    ) -> dict[str, Tensor]:
        """Run the forward pass over a microbatch.

        Args:
            key: Update and microbatch.
            values: Inputs of the stage, as separate leaves that require a gradient if needed.
            target: Targets of the microbatch, for the stage with the loss; fewer than the rows of a padded batch.
            scale: Loss scale in the backward pass.

        Returns:
            Outputs of the stage, detached, and the unscaled `LOSS` if it has the loss.

        Raises:
            InputError: A module does not return one tensor.
        """
        held = _Held(dict(values), target, scale, self._inputs)
        if self.recompute:
            with torch.no_grad(), self._state.first() as held.before:
                self._run(key, held)
        else:
            with torch.enable_grad():
                self._run(key, held)
        self._held[key] = held
        given = {name: held.outputs[name].detach() for name in self.gives}
        if self.has_loss:
            given[LOSS] = held.outputs[LOSS].detach()
        if self.recompute:
            held.outputs.clear()
        return given

    def evaluate(self, key: MicrobatchKey, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Run a forward pass without a backward pass; call `drop` once the outputs are sent.

        Args:
            key: Update and microbatch.
            values: Inputs of the stage.

        Returns:
            Outputs of the stage, and `OUTPUT` if it has the loss.
        """
        self._held[key] = _Held(dict(values), None, 0.0, self._inputs)
        with torch.no_grad():
            found = self._values(key, {name: value.clone() for name, value in values.items()})
        given = {name: self._plain(name, found[name]) for name in self.gives}
        if self.has_loss:
            given[OUTPUT] = self._plain(self._output, found[self._output])
        return given

    def drop(self, key: MicrobatchKey) -> None:
        """Drop a microbatch."""
        del self._held[key]

    def needs_gradient(self, key: MicrobatchKey, name: str) -> bool:
        """Whether an output of the stage depends on trained parameters, here or in earlier stages."""
        held = self._held[key]
        if name in held.outputs:
            return held.outputs[name].requires_grad
        trained = any(True for _ in self.parameters())
        return trained or any(value.requires_grad for value in held.values.values())

    def backward(self, key: MicrobatchKey, gradients: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Run the backward pass over a microbatch; weight gradients accumulate in `.grad`.

        Args:
            key: Update and microbatch.
            gradients: Gradient of each output of the stage that needs one.

        Returns:
            Gradients of the stage's inputs; zeros marked as such (`_or_none`) if the loss does not depend on one.
        """
        held, outputs, given = self._roots(key, gradients)
        if outputs:
            torch.autograd.backward(outputs, given)
        return {name: _or_none(leaf.grad, leaf) for name, leaf in held.wanted.items()}

    def backward_inputs(self, key: MicrobatchKey, gradients: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Run the first part of a backward pass (input gradients); arguments and result as in `backward`."""
        held, outputs, given = self._roots(key, gradients)
        wanted = held.wanted
        split = SplitBackward(outputs, given, list(wanted.values()), list(self.parameters()))
        found = split.input_gradients()
        self._split[key] = split
        return {
            name: _or_none(gradient, leaf)
            for (name, leaf), gradient in zip(wanted.items(), found, strict=True)
        }

    def backward_weights(self, key: MicrobatchKey) -> None:
        """Run the second part of a backward pass: weight gradients."""
        self._split.pop(key).weight_gradients()

    def forget(self) -> None:
        """Drop all microbatches."""
        self._held.clear()
        self._split.clear()

    def _roots(
        self, key: MicrobatchKey, gradients: Mapping[str, Tensor]
    ) -> tuple[_Held, list[Tensor], list[Tensor]]:
        """Outputs from which back-propagation starts, and their gradients."""
        held = self._held.pop(key)
        if self.recompute:
            assert held.before is not None
            with torch.enable_grad(), self._state.recompute(held.before):
                self._run(key, held)
        outputs = [held.outputs[name] for name in gradients]
        given = list(gradients.values())
        if self.has_loss:
            outputs.append(held.outputs[LOSS])
            given.append(torch.full_like(held.outputs[LOSS], held.scale))
        chosen = [n for n, output in enumerate(outputs) if output.requires_grad and not _is_none(given[n])]
        return held, [outputs[n] for n in chosen], [given[n] for n in chosen]

    def _run(self, key: MicrobatchKey, held: _Held) -> None:
        given = self._given(held.values)
        versions = {name: value._version for name, value in given.items()}
        values = self._values(key, given)
        self._note_changes({name for name, version in versions.items() if given[name]._version != version})
        held.outputs = {name: self._plain(name, values[name]) for name in self.gives}
        if self.has_loss:
            assert held.target is not None
            held.outputs[LOSS] = self._plain(LOSS, self._loss_of(values[self._output], held.target))

    def _loss_of(self, output: Tensor, target: Tensor) -> Tensor:
        """Loss of the rows that have a target: those behind fill a smaller batch up."""
        if not len(target):
            return output.sum() * 0.0
        return self._loss(
            output if len(target) == self._plan.microbatch_size else output[: len(target)], target
        )

    def _values(self, key: MicrobatchKey, given: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Outputs of all modules of the stage, and its inputs."""
        values = dict(given)
        devices = sorted({value.device.index for value in values.values() if value.is_cuda})
        with torch.random.fork_rng(devices=devices):
            for name, module in self.modules.items():
                _seed(stream_key(self._seed, *key, self._places[name]), devices)
                found = module(*(values[source] for source in self._sources[name]))
                if not isinstance(found, Tensor):
                    raise InputError(
                        f"module {name!r} of stage {self.number} returned {type(found).__name__}; expected one tensor: "
                        "wrap it in a module that returns one, or cut it into several"
                    )
                values[name] = found
        return values

    def _given(self, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Inputs of modules; copies of those that they change in place: each is a leaf, and may be taken again.

        The first microbatch copies all, and tells which are needed.
        """
        return {
            name: value.clone() if self._changed is None or name in self._changed else value
            for name, value in values.items()
        }

    def _note_changes(self, changed: set[str]) -> None:
        if self._changed is None:
            self._changed = changed
        if name := next(iter(changed & self._elsewhere), ""):
            raise InputError(
                f"stage {self.number} changes {name!r} in place, which another stage takes as it was; expected a "
                "module that makes a new tensor (inplace=False), or all that take it in one stage"
            )
        if more := changed - self._changed:
            raise InputError(
                f"stage {self.number} changes {min(more)!r} in place, which it did not in the first microbatch; "
                "expected the same in each, or a module that makes a new tensor (inplace=False)"
            )

    def _plain(self, name: str, value: Tensor) -> Tensor:
        """This rank's part of an output, which may be a DTensor."""
        return plain_value(value, self._plan.layout_of(name, self.number, self._replica, value.dim()), name)


class _Held:
    """A microbatch between its forward and its backward pass."""

    def __init__(
        self, values: dict[str, Tensor], target: Tensor | None, scale: float, inputs: frozenset[str]
    ) -> None:
        self.values, self.target, self.scale, self._inputs = values, target, scale, inputs
        self.outputs: dict[str, Tensor] = {}
        self.before: PrePassState | None = None
        """State before the forward pass, where it will be done again."""

    @property
    def wanted(self) -> dict[str, Tensor]:
        """Leaves whose gradients other stages wait for."""
        return {n: v for n, v in self.values.items() if n not in self._inputs and v.requires_grad}


def _or_none(gradient: Tensor | None, leaf: Tensor) -> Tensor:
    """A gradient as it travels: none is negative zeros, which count as zeros wherever they are added."""
    if gradient is None:
        return torch.full_like(leaf, -0.0)
    # Such as that of a loss of no entry, with a minus before it.
    return torch.zeros_like(gradient) if _is_none(gradient) else gradient


def _is_none(gradient: Tensor) -> bool:
    """Whether a gradient that came is none, so that what lies behind it gets none either, as in one process."""
    flat = gradient.detach().reshape(-1)
    if not flat.numel() or not (flat[0] == 0 and flat[0].signbit()):
        return False
    return bool((flat == 0).all() and flat.signbit().all())


def _seed(seed: int, devices: Iterable[int]) -> None:
    """Seed the generators in use; torch's own function takes half a millisecond where there is no accelerator."""
    torch.default_generator.manual_seed(seed)
    for device in devices:
        torch.cuda.default_generators[device].manual_seed(seed)
