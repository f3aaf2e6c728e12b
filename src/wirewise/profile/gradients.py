"""What compressing gradients costs here, measured: codecs, collectives, and when gradients get ready.

Cupcake's protocol: trace an uncompressed job, time each codec over sizes with all that the runtime does around it,
time the collectives that will be used, and take the slowest rank everywhere.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from wirewise.codec.gradients import GradientCodec, Segments, make
from wirewise.cost.gradients import WIRES, CodecTimes, GradientCosts
from wirewise.errors import InputError
from wirewise.profile.rounds import Bench, Communicator, collective_times, concurrent_times, rising
from wirewise.trace.gradients import GradientTensor, GradientTrace

__all__ = ["GradientWatch", "gradient_trace", "measure_costs", "measure_costs_of"]

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
    """Seconds of codecs and of collectives between these ranks; all ranks call it, and all get the same.

    Each round starts at once on all ranks, so that ranks that share processors slow each other down as they do in a
    step, and counts with the slowest rank. Encoding includes the copy of the gradients into the group, what the
    residual takes, and handing the group to the thread that sends it, which also takes its time without a codec (the
    table "none"); decoding adds up as many payloads as there are ranks.

    Args:
        transport: Transport between the ranks.
        codecs: Names of `codec.gradients.CODECS`; "none" is passed over.
        sizes: Elements, at least two and better five, the largest that of the largest group.
        ratio: Share of the values that sparse codecs keep.
        device: Device of the gradients; None: the CPU.
        tensor_elements: Elements of a typical tensor: larger groups are measured in as many segments as they have.
            None: one segment.
        options: Options of codecs, by name.

    Raises:
        InputError: Too few sizes, or an unknown codec.
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
    """Costs of groups of these gradients, from the smallest one to all of them; arguments as `measure_costs`."""
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


def _warm(codecs: Any, device: torch.device) -> None:
    """Compile every kernel, before ranks wait for each other."""
    for codec in codecs:
        trial = _Trial(codec, 512, 256, 2, device)
        trial.encode()
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
    return CodecTimes(rising(sizes, seconds), tuple((float(size), 0.0) for size in sizes))


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
    encode, decode, decode_sum = (rising(sizes, column) for column in np.array(found).T)
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
        """What the thread that computes does."""
        self.step += 1
        self.flat.copy_(self.gradient)
        self.codec.encode(self.flat, self.memory, self.segments, self.payloads[0], step=self.step)
        _settle(self.device)

    def decode(self, count: int) -> None:
        """What the thread of the collective does with so many payloads."""
        self.codec.decode_sum(self.payloads[:count], self.segments, self.flat, scale=1 / count)
        _settle(self.device)


def _settle(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def gradient_trace(
    model: nn.Module, step: Callable[[], object], *, steps: int = 20, transport: Communicator | None = None
) -> GradientTrace:
    """When the gradients of a model get ready, in the median of some steps of a job that does not compress.

    The first gradient's time counts from the end of the model's forward pass.

    Args:
        model: Called once in a step.
        step: Carries out one training step.
        steps: Number of steps that count, after two that do not.
        transport: Transport between ranks, which all call this; times are then those of the slowest one.

    Raises:
        InputError: No step, or a parameter that requires a gradient and gets none, or more than one in a step.
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
    """Notes when the gradients of a model get ready, step by step.

    A step may call the model several times (gradient accumulation): its gradients count from the end of the last
    forward pass whose gradients are exchanged. A forward pass without gradients, such as one of a validation, is none
    of these.

    Args:
        model: Called at least once in a step.
        exchanges: Asked at the end of a forward pass whether ranks exchange the gradients of that pass, which they do
            not under `no_sync`; None: those of the last pass of a step.
    """

    def __init__(self, model: nn.Module, exchanges: Callable[[], bool] | None = None) -> None:
        self._model = type(model).__name__
        self._trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self._exchanges = exchanges
        self._passes: list[_Pass] = []
        self._steps: list[list[_Pass]] = []
        self._hooks = ExitStack()
        self._hook(model.register_forward_hook(self._forward_ended))
        for name, parameter in self._trained.items():
            note = lambda _, name=name: self._ready(name)  # noqa: E731
            self._hook(parameter.register_post_accumulate_grad_hook(note))

    def _hook(self, handle: Any) -> None:
        self._hooks.callback(handle.remove)

    def _forward_ended(self, *_: Any) -> None:
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
        """The optimizer is done: the passes since the last call are one step. False: none of them had gradients."""
        passes = [own for own in self._passes if own.ready]
        if passes:
            self._passes = []
            self._steps.append(passes)
        return bool(passes)

    def forward_ends_s(self, steps: int) -> list[float]:
        """`time.perf_counter` at the end of the forward pass from which the gradients of each last step count.

        Raises:
            InputError: Raised by `trace`.
        """
        return [self._exchanged(own).ended_s for own in self._steps[-steps:]]

    def trace(self, steps: int, transport: Communicator | None = None) -> GradientTrace:
        """The median of the last steps; with a transport, times are those of the slowest rank.

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
        """Take the hooks off the model."""
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
