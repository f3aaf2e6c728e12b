"""Stage traces: time, memory and outputs of each module for one microbatch, input of pipeline planners."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from functools import cached_property
from typing import NamedTuple

import msgspec

from wirewise.errors import InputError
from wirewise.trace.record_files import amount_faults, read_record, write_record

__all__ = ["ModuleTimes", "StageModule", "StageTrace", "read_stage_trace", "write_stage_trace"]


class StageModule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Module of the list that is partitioned; seconds of a microbatch by its size, bytes of activations per sample."""

    name: str
    """Name of the module, unique in the list."""
    forward_s: tuple[float, ...]
    """Seconds of the forward pass for each microbatch size of the trace, [sizes]."""
    backward_s: tuple[float, ...]
    """Seconds of the whole backward pass, [sizes]."""
    weight_gradient_s: tuple[float, ...] = ()
    """Seconds of the part of the backward pass for weight gradients, [sizes]. Defaults to half of it."""
    output_bytes: float = 0.0
    """Bytes per sample of the output; its gradient has the same size."""
    saved_bytes: float = 0.0
    """Bytes per sample kept from the forward to the backward pass, including the input."""
    parameter_bytes: float = 0.0
    """Bytes of the parameters, and of their gradients."""
    optimizer_s: float = 0.0
    """Seconds to update the parameters."""
    factor_bytes: float = 0.0
    """Bytes per sample of the inputs of its linear layers and of the gradients of their outputs: sufficient factors, of
    which the gradients of `factored_bytes` are products."""
    factored_bytes: float = 0.0
    """Bytes of the parameters of its linear layers; 0 if there are none, or if unknown."""


class ModuleTimes(NamedTuple):
    """Times of a module for one microbatch, in seconds."""

    forward_s: float
    backward_s: float
    weight_gradient_s: float
    """Seconds of the part of the backward pass for weight gradients."""


class StageTrace(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, dict=True):
    """Model as a list of modules, measured on one rank.

    Raises:
        InputError: A value is invalid; the message names the place.
    """

    modules: tuple[StageModule, ...]
    """Modules in the order of the forward pass."""
    sizes: tuple[int, ...] = (1,)
    """Measured microbatch sizes, ascending."""
    edges: tuple[tuple[str, str], ...] = ()
    """Pairs of module names: producer and consumer; empty if each module feeds only the next."""
    input_bytes: float = 0.0
    """Bytes per sample of the first module's input."""
    state_factor: float = 3.0
    """Bytes of gradients and optimizer state per byte of parameters; 3 with the two moments of Adam."""
    width_speedup: dict[int, float] = {}
    """Speed-up of a stage on n ranks over one, by n, including their own messages."""
    model: str = ""
    """Name of the model."""
    device: str = ""
    """Device on which it was measured."""

    def __post_init__(self) -> None:
        for fault in itertools.chain(self._faults(), self._module_faults(), self._edge_faults()):
            raise InputError(fault)

    @cached_property
    def numbers(self) -> dict[str, int]:
        """Index of each module, by name."""
        return {module.name: number for number, module in enumerate(self.modules)}

    @cached_property
    def flows(self) -> tuple[tuple[int, int], ...]:
        """Edges between modules, as (producer, consumer) indices; explicit also for chains."""
        if self.edges:
            return tuple((self.numbers[source], self.numbers[target]) for source, target in self.edges)
        return tuple(itertools.pairwise(range(len(self.modules))))

    @property
    def is_chain(self) -> bool:
        """Whether each module feeds only the next one."""
        return set(self.flows) == set(itertools.pairwise(range(len(self.modules))))

    def times(self, number: int, microbatch_size: int) -> ModuleTimes:
        """Interpolate the times of a module for a microbatch size.

        Between two measured sizes, and beyond the smallest and largest, seconds lie on the line through the nearest
        two; with one measured size they are proportional to samples.

        Args:
            number: Index of the module.
            microbatch_size: Samples of the microbatch.
        """
        module = self.modules[number]
        weight = module.weight_gradient_s or tuple(0.5 * seconds for seconds in module.backward_s)
        return ModuleTimes(
            *(self._at(seconds, microbatch_size) for seconds in (module.forward_s, module.backward_s, weight))
        )

    def _at(self, seconds: tuple[float, ...], samples: int) -> float:
        if samples in self.sizes:
            return seconds[self.sizes.index(samples)]
        if len(self.sizes) == 1:
            return seconds[0] * samples / self.sizes[0]
        above = next((i for i, size in enumerate(self.sizes) if size > samples), len(self.sizes) - 1)
        right = max(above, 1)
        low, high = self.sizes[right - 1], self.sizes[right]
        slope = (seconds[right] - seconds[right - 1]) / (high - low)
        return max(seconds[right - 1] + slope * (samples - low), 0.0)

    def _faults(self) -> Iterator[str]:
        if not self.modules:
            yield "there are no modules - at `$.modules`; expected at least one"
        rising = all(low < high for low, high in itertools.pairwise(self.sizes))
        if not self.sizes or self.sizes[0] < 1 or not rising:
            yield f"sizes are {list(self.sizes)} - at `$.sizes`; expected rising numbers of samples of at least 1"
        for name in ("input_bytes", "state_factor"):
            yield from amount_faults(f"{name} - at `$.{name}`", getattr(self, name))
        for width, factor in self.width_speedup.items():
            if width < 1 or not 0 < factor < float("inf"):
                yield (
                    f"{width} ranks compute {factor} times as fast - at `$.width_speedup`; expected at least 1 rank "
                    "and a finite factor above 0"
                )

    def _module_faults(self) -> Iterator[str]:
        seen: set[str] = set()
        for number, module in enumerate(self.modules):
            where = f"module {module.name!r} - at `$.modules[{number}]`"
            if not module.name or module.name in seen:
                yield f"{where}: an empty name, or one that stands twice; expected each name once"
            seen.add(module.name)
            for name in ("forward_s", "backward_s", "weight_gradient_s"):
                seconds = getattr(module, name)
                if len(seconds) != len(self.sizes) and (seconds or name != "weight_gradient_s"):
                    yield f"{where}: {name} has {len(seconds)} figures; expected {len(self.sizes)}, one for each size"
                for one in seconds:
                    yield from amount_faults(f"{where}: {name}", one)
            for weight, whole in zip(module.weight_gradient_s, module.backward_s, strict=False):
                if weight > whole:
                    yield f"{where}: weight_gradient_s is {weight}, more than the whole backward pass, {whole}"
            for name in (
                "output_bytes", "saved_bytes", "parameter_bytes", "optimizer_s", "factor_bytes", "factored_bytes",
            ):  # fmt: skip
                yield from amount_faults(f"{where}: {name}", getattr(module, name))
            if module.factored_bytes > module.parameter_bytes or (module.factored_bytes > 0) > (
                module.factor_bytes > 0
            ):
                yield (
                    f"{where}: factors of {module.factor_bytes} bytes for {module.factored_bytes} of "
                    f"{module.parameter_bytes} bytes of parameters; expected no more than all, and factors for them"
                )

    def _edge_faults(self) -> Iterator[str]:
        for number, (source, target) in enumerate(self.edges):
            where = f"edge {source!r} -> {target!r} - at `$.edges[{number}]`"
            unknown = [name for name in (source, target) if name not in self.numbers]
            if unknown:
                yield f"{where}: there is no module {unknown[0]!r}"
            elif self.numbers[source] >= self.numbers[target]:
                yield f"{where}: expected two modules in the order of the forward pass"
        if len(set(self.edges)) != len(self.edges):
            yield "an edge stands twice - at `$.edges`; expected each pair of modules once"


def read_stage_trace(path: str | os.PathLike[str]) -> StageTrace:
    """Read a JSON file whose keys are the fields of `StageTrace` and `StageModule`.

    Raises:
        InputError: The file cannot be read or is malformed; the message names the file and the place.
    """
    return read_record(path, StageTrace, "modules")


def write_stage_trace(trace: StageTrace, path: str | os.PathLike[str]) -> None:
    """Write a stage trace atomically; `read_stage_trace` reads it.

    Raises:
        InputError: The folder is missing, not writable or full.
    """
    write_record(trace, path)
