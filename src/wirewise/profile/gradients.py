"""Measured costs of compressing gradients on this machine: codecs, collectives, and ready times of gradients.

Cupcake's protocol: trace an uncompressed job, time each codec over sizes with all that the runtime does around it,
time the collectives that will be used, and take the slowest rank everywhere.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook

from wirewise.codec.gradients import GradientCodec, Segments, make
from wirewise.cost.gradients import WIRES, CodecTimes, GradientCosts
from wirewise.errors import InputError
from wirewise.instruments import observer
from wirewise.profile.rounds import Bench, Communicator, collective_times, concurrent_times, make_monotonic
from wirewise.trace.gradients import GradientTensor, GradientTrace

__all__ = ["GradientWatch", "gradient_trace", "measure_costs", "measure_costs_of", "warm_codecs"]

_SIZES = tuple(4**k for k in range(4, 11))
_KNOTS = 8
"""Sizes at which codecs are measured for a trace."""
_SMALLEST = 64


def measure_costs(
    transport: Communicator,
    codecs: Sequence[str],
    *,
    sizes: Sequence[int] = _SIZES,
    ratio: float = 0.01,
    device: torch.device | str | None = None,
    tensor_elements: int | None = None,
    options: Mapping[str, Mapping[str, Any]] | None = None,
) -> GradientCosts:
    """Measure codec and collective times between these ranks, in seconds; a collective call with equal results.

    Each round starts simultaneously on all ranks, so that ranks that share CPUs slow each other down as in a step,
    and the slowest rank counts. Encoding includes the copy of the gradients into the group, the residual update, and
    handing the group to the sending thread, which also takes time without a codec (the table "none"); decoding sums
    one payload per rank.

    Args:
        transport: Transport between the ranks.
        codecs: Names of `codec.gradients.CODECS`; "none" is skipped.
        sizes: Sizes to measure, in elements, at least two and better five, up to the largest group.
        ratio: Fraction of the values that sparse codecs keep.
        device: Device of the gradients. Defaults to the CPU.
        tensor_elements: Elements of a typical tensor, which sets the number of segments of larger groups. None for
            one segment.
        options: Options of codecs, by name.

    Raises:
        InputError: There are too few sizes, or a codec is unknown.
        PeerError: A peer is gone.
    """
    steps = sorted({int(size) for size in sizes})
    if len(steps) < 2 or steps[0] < 1:
        raise InputError(f"sizes are {list(sizes)}; expected two or more numbers of elements of at least 1")
    bench, where = Bench(transport), torch.device(device or "cpu")
    names = [name for name in dict.fromkeys(codecs) if name != "none"]
    made = {name: _make(name, ratio, dict((options or {}).get(name, {}))) for name in names}
    _warm(made.values(), where)
    with ThreadPoolExecutor(1) as thread:
        times = {"none": _launch_times(bench, thread, steps, where)}
        for name, codec in made.items():
            times[name] = _codec_times(bench, thread, codec, steps, tensor_elements, where)
    payloads = [codec.size_bytes(Segments([steps[-1]])) for codec in made.values()]
    gradient_bytes, payload_bytes = 4 * steps[-1], max(payloads, default=0)
    return GradientCosts(
        device=str(where),
        codecs=times,
        ratio=ratio,
        ranks=transport.world_size,
        schemes=collective_times(bench, gradient_bytes, payload_bytes, where),
        concurrent=concurrent_times(bench, gradient_bytes, where),
    )


def measure_costs_of(
    trace: GradientTrace,
    transport: Communicator,
    codecs: Sequence[str],
    *,
    ratio: float = 0.01,
    device: torch.device | str | None = None,
) -> GradientCosts:
    """Measure costs over the group sizes of these gradients; arguments as in `measure_costs`."""
    sizes = [tensor.elements for tensor in trace.tensors]
    low, high = max(min(sizes), _SMALLEST), max(sum(sizes), 2 * _SMALLEST)
    return measure_costs(
        transport,
        codecs,
        sizes=np.geomspace(low, high, _KNOTS).astype(int).tolist(),
        ratio=ratio,
        device=device,
        tensor_elements=max(sum(sizes) // len(sizes), 1),
    )


def _make(name: str, ratio: float, options: dict[str, Any]) -> GradientCodec:
    if name in WIRES and WIRES[name].sparse:
        options.setdefault("ratio", ratio)
    return make(name, **options)


def warm_codecs(names: Iterable[str]) -> None:
    """Compile every kernel of codecs with their default options, on the CPU."""
    _warm(map(make, names), torch.device("cpu"))


def _warm(codecs: Iterable[GradientCodec], device: torch.device) -> None:
    """Compile every kernel, before ranks wait for each other."""
    for codec in codecs:
        trial = _Trial(codec, 512, 256, 2, device)
        trial.encode()
        for number in range(codec.rounds):
            codec.advance(number, trial.payloads[0], trial.flat, trial.memory, trial.segments)
        trial.decode(1)
        trial.decode(2)


def _launch_times(
    bench: Bench, thread: ThreadPoolExecutor, sizes: list[int], device: torch.device
) -> CodecTimes:
    """Times of groups without a codec: their division by the number of ranks, and the launch."""
    seconds = []
    for size in sizes:
        flat = torch.zeros(size, device=device)

        def launch(flat: Tensor = flat) -> None:
            flat.div_(bench.ranks)
            _settle(device)
            thread.submit(int)

        seconds.append(bench.rounds(launch, "the measuring of launches"))
    return CodecTimes(make_monotonic(sizes, seconds), tuple((float(size), 0.0) for size in sizes))


def _codec_times(
    bench: Bench,
    thread: ThreadPoolExecutor,
    codec: GradientCodec,
    sizes: list[int],
    tensor: int | None,
    device: torch.device,
) -> CodecTimes:
    what, n = f"the measuring of {type(codec).__name__}", bench.ranks
    found = []
    for size in sizes:
        trial = _Trial(codec, size, tensor, n, device)
        actions = (
            lambda t=trial: (t.encode(), thread.submit(int)),
            lambda t=trial: t.decode(1),
            lambda t=trial: t.decode(n),
        )
        found.append([bench.rounds(action, what) for action in actions])
    encode, decode, decode_sum = (make_monotonic(sizes, column) for column in np.array(found).T)
    return CodecTimes(encode, decode, {n: decode_sum} if n > 1 else {})


class _Trial:
    """A group as the runtime handles it."""

    def __init__(
        self, codec: GradientCodec, size: int, tensor: int | None, ranks: int, device: torch.device
    ) -> None:
        self.codec, self.device, self.step = codec, device, 0
        count = max(1, round(size / tensor)) if tensor else 1
        self.segments = Segments([len(part) for part in np.array_split(np.empty(size), count)])
        self.gradient = torch.randn(size, device=device)
        self.flat = torch.empty_like(self.gradient)
        self.memory = torch.zeros_like(self.flat) if codec.memory else None
        width = codec.size_bytes(self.segments)
        self.payloads = torch.zeros(ranks, width, dtype=torch.uint8, device=device)
        for row in self.payloads:
            # Payloads of ranks differ: where they say the same, adding them up is faster.
            codec.encode(torch.randn(size, device=device), None, self.segments, row)

    def encode(self) -> None:
        """Run the part of the thread that computes."""
        self.step += 1
        self.flat.copy_(self.gradient)
        self.codec.encode(self.flat, self.memory, self.segments, self.payloads[0], step=self.step)
        _settle(self.device)

    def decode(self, count: int) -> None:
        """Run the part of the collective's thread with `count` payloads."""
        self.codec.decode_sum(self.payloads[:count], self.segments, self.flat, scale=1 / count)
        _settle(self.device)


def _settle(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def gradient_trace(
    model: nn.Module, step: Callable[[], object], *, steps: int = 20, transport: Communicator | None = None
) -> GradientTrace:
    """Measure the ready times of a model's gradients, as medians over steps without compression.

    The first gradient's time counts from the end of the model's forward pass.

    Args:
        model: Called once in a step.
        step: Function that executes one training step.
        steps: Number of measured steps, after two warm-up steps.
        transport: Transport between ranks, for a collective call; times are then those of the slowest rank.

    Raises:
        InputError: There are no steps, or a parameter gets no gradient, or more than one in a step.
    """
    if steps < 1:
        raise InputError(f"steps is {steps}; expected at least 1")
    watch = GradientWatch(model)
    try:
        for _ in range(2 + steps):
            step()
            watch.step_ended()
        return watch.trace(steps, transport)
    finally:
        watch.close()


class _Pass(NamedTuple):
    """A forward pass and what its backward pass gave."""

    ended_s: float
    """`time.perf_counter` at the end of the forward pass."""
    exchanges: bool
    """Whether the backward pass exchanges gradients between ranks."""
    ready: list[tuple[float, str]]
    """When the gradient of each parameter was added up, in order."""


class GradientWatch:
    """Recorder of the ready times of a model's gradients, step by step.

    A step may call the model several times (gradient accumulation): its gradients count from the end of the last
    forward pass whose gradients are exchanged. A forward pass without gradients, such as one of a validation, is none
    of these.

    Args:
        model: Called at least once in a step.
        exchanges: Called at the end of a forward pass; returns whether ranks exchange the gradients of that pass,
            which they do not under `no_sync`. Defaults to those of the last pass of a step.
    """

    def __init__(self, model: nn.Module, exchanges: Callable[[], bool] | None = None) -> None:
        self._model = type(model).__name__
        self._trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self._exchanges = exchanges
        self._passes: list[_Pass] = []
        self._steps: list[list[_Pass]] = []
        self._hooks = ExitStack()

        def ended(module: nn.Module, _inputs: Any, _output: Any) -> None:
            if module is model:
                self._forward_ended()

        # A hook on the model itself would keep `torch.save` from writing the model.
        self._hook(register_module_forward_hook(ended))
        for name, parameter in self._trained.items():
            note = observer(lambda _, name=name: self._ready(name))
            self._hook(parameter.register_post_accumulate_grad_hook(note))

    def _hook(self, handle: Any) -> None:
        self._hooks.callback(handle.remove)

    def _forward_ended(self) -> None:
        exchanges = True if self._exchanges is None else self._exchanges()
        if self._passes and not self._passes[-1].ready:
            # No backward pass came: nothing is kept of what a long validation calls.
            self._passes.pop()
        self._passes.append(_Pass(time.perf_counter(), exchanges, []))

    def _ready(self, name: str) -> None:
        if self._passes:
            self._passes[-1].ready.append((time.perf_counter(), name))

    @property
    def has_gradients(self) -> bool:
        """Whether a gradient got ready since the last step ended."""
        return any(own.ready for own in self._passes)

    def step_ended(self) -> bool:
        """Mark the optimizer as done, which ends a step; returns False if no pass had gradients."""
        passes = [own for own in self._passes if own.ready]
        if passes:
            self._passes = []
            self._steps.append(passes)
        return bool(passes)

    def forward_ends_s(self, steps: int) -> list[float]:
        """End of the forward pass from which the gradients of each of the last steps count, by `time.perf_counter`.

        Raises:
            InputError: Raised by `trace`.
        """
        return [self._exchanged(own).ended_s for own in self._steps[-steps:]]

    def trace(self, steps: int, transport: Communicator | None = None) -> GradientTrace:
        """Compute the medians over the last steps; with a transport, times of the slowest rank.

        Raises:
            InputError: A parameter got no gradient, or more than one in a pass, or a step exchanged its gradients
                several times or not at all.
        """
        seen = [self._exchanged(own) for own in self._steps[-steps:]]
        return _median(self._trained, seen, transport, self._model)

    def _exchanged(self, passes: list[_Pass]) -> _Pass:
        """The pass of a step whose gradients the ranks exchange."""
        if self._exchanges is None:
            return passes[-1]
        found = [own for own in passes if own.exchanges]
        if len(found) != 1:
            raise InputError(
                f"a step of the optimizer has {len(passes)} backward passes, of which {len(found)} exchange gradients; "
                "expected one that does: run all but the last under no_sync() of DistributedDataParallel; steps of an "
                "optimizer that calls its closure several times, as LBFGS does, are not measured"
            )
        return found[0]

    def close(self) -> None:
        """Remove the hooks from the model."""
        self._hooks.close()


def _median(
    trained: Mapping[str, nn.Parameter],
    seen: list[_Pass],
    transport: Communicator | None,
    model: str,
) -> GradientTrace:
    for own in seen:
        names = [name for _, name in own.ready]
        if sorted(names) != sorted(trained):
            missing = sorted(set(trained) - set(names))
            raise InputError(
                f"in one step {len(names)} gradients came for {len(trained)} parameters, none for {missing[:5]}; "
                "freeze unused parameters, and call the model once for each backward()"
            )
    since: dict[str, list[float]] = {name: [] for name in trained}
    for own in seen:
        for at_s, name in own.ready:
            since[name].append(at_s - own.ended_s)
    ready = np.array([np.median(since[name]) for name in trained])
    if transport is not None:
        ready = transport.slowest(ready)
    order = np.argsort(ready, kind="stable")
    gaps = np.diff(ready[order], prepend=0.0)
    names = list(trained)
    tensors = [
        GradientTensor(name=names[i], elements=trained[names[i]].numel(), gap_us=max(0.0, 1e6 * float(gap)))
        for i, gap in zip(order, gaps, strict=True)
    ]
    return GradientTrace(
        tensors=tuple(tensors), model=model, device=str(next(iter(trained.values())).device.type)
    )
