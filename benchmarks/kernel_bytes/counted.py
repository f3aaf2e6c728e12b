"""Bytes that Triton kernels load and store, counted under their masks in Triton's interpreter.

    TRITON_INTERPRET=1 python benchmarks/kernel_bytes/counted.py ROW PRESET

prints a JSON list of launches, one a variant; `run.py` starts it, as kernels that are to be compiled need a process
without the interpreter.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import msgspec
import numpy as np
import torch
from triton.runtime import interpreter

from wirewise import codec
from wirewise.codec.gradients import Segments, make

SECTOR = 32
"""Bytes that a GPU's caches and memory move at least."""
_KINDS = {
    torch.uint8: "u8",
    torch.int16: "i16",
    torch.int32: "i32",
    torch.int64: "i64",
    torch.float16: "fp16",
    torch.float32: "fp32",
    torch.float64: "fp64",
}


class Launch(msgspec.Struct, kw_only=True):
    """A variant of a kernel as it was launched, and the bytes of that launch."""

    module: str
    kernel: str
    values: dict[str, Any]
    """Arguments that are known when it is compiled."""
    kinds: dict[str, str]
    """Types of the others, as Triton names them."""
    aligned: list[str]
    """Names of other arguments that are multiples of 16."""
    num_warps: int
    fuse: bool
    work: list[str]
    """What launched it."""
    programs: int
    loaded: int
    stored: int
    """Bytes of all loads and of all stores; an atomic operation is both."""
    must: int
    """Distinct bytes that are loaded and distinct bytes that are stored."""
    sectors: int
    """Bytes of the sectors that each program touches, each counted once a program, loaded and stored ones apart."""


class Counter:
    """Loads and stores of one launch."""

    def __init__(self) -> None:
        self.requested = {"load": 0, "store": 0}
        self.sectors, self.programs = 0, 0
        self._now: dict[str, list[np.ndarray]] = {"load": [], "store": []}
        self._distinct: dict[str, list[np.ndarray]] = {"load": [], "store": []}

    def access(self, what: str, pointers: Any, mask: Any) -> None:
        size = pointers.get_element_ty().primitive_bitwidth // 8
        places, there = np.broadcast_arrays(pointers.data, mask.data)
        first = places[there]
        self.requested[what] += size * len(first)
        self._now[what].append((first[:, None] + np.arange(size, dtype=np.uint64)).ravel())

    def end_program(self) -> None:
        self.programs += 1
        for what, accesses in self._now.items():
            if accesses:
                places = np.unique(np.concatenate(accesses))
                self.sectors += SECTOR * len(np.unique(places // SECTOR))
                self._distinct[what].append(places)
                accesses.clear()

    @property
    def must(self) -> int:
        return sum(len(np.unique(np.concatenate(parts))) for parts in self._distinct.values() if parts)


class Launches:
    """Counts every launch in the interpreter from `__enter__` to `__exit__`, and keeps one of each variant."""

    def __init__(self) -> None:
        self.work = ""
        self.found: dict[tuple[Any, ...], Launch] = {}
        self._counter = Counter()
        self._kept: list[tuple[Any, str, Any]] = []

    def __enter__(self) -> Launches:
        builder = interpreter.InterpreterBuilder
        self._wrap(builder, "create_masked_load", lambda a: self._counter.access("load", a[0], a[1]))
        self._wrap(builder, "create_masked_store", lambda a: self._counter.access("store", a[0], a[2]))
        self._wrap(builder, "create_atomic_rmw", self._atomic)
        run = interpreter.InterpretedFunction.run

        def counted(kernel: Any, *given: Any, grid: Any, warmup: bool, **options: Any) -> None:
            self._launch(run, kernel, given, grid, warmup, options)

        self._kept.append((interpreter.InterpretedFunction, "run", run))
        interpreter.InterpretedFunction.run = counted
        return self

    def __exit__(self, *_: object) -> None:
        for owner, name, was in self._kept:
            setattr(owner, name, was)

    def _wrap(self, owner: Any, name: str, hear: Callable[[tuple[Any, ...]], None]) -> None:
        was = getattr(owner, name)

        def heard(builder: Any, *given: Any) -> Any:
            hear(given)
            return was(builder, *given)

        self._kept.append((owner, name, was))
        setattr(owner, name, heard)

    def _atomic(self, given: tuple[Any, ...]) -> None:
        for what in ("load", "store"):
            self._counter.access(what, given[1], given[3])

    def _launch(
        self, run: Any, kernel: Any, given: tuple[Any, ...], grid: Any, warmup: bool, options: dict[str, Any]
    ) -> None:
        self._counter = counter = Counter()
        set_place = interpreter.interpreter_builder.set_grid_idx

        def next_program(x: int, y: int, z: int) -> None:
            if x or y or z:
                counter.end_program()
            set_place(x, y, z)

        interpreter.interpreter_builder.set_grid_idx = next_program
        try:
            run(kernel, *given, grid=grid, warmup=warmup, **options)
        finally:
            del interpreter.interpreter_builder.set_grid_idx
        counter.end_program()
        self._keep(kernel, dict(zip(kernel.arg_names, given, strict=False)) | options, counter)

    def _keep(self, kernel: Any, arguments: dict[str, Any], counter: Counter) -> None:
        named = {name: arguments[name] for name in kernel.arg_names}
        values = {name: value for name, value in named.items() if name.isupper()}
        others = {name: value for name, value in named.items() if not name.isupper()}
        launch = Launch(
            module=kernel.fn.__module__,
            kernel=kernel.fn.__name__,
            values=values,
            kinds={name: kind_of(value) for name, value in others.items()},
            aligned=[name for name, value in others.items() if is_aligned(value)],
            num_warps=arguments.get("num_warps", 4),
            fuse=arguments.get("enable_fp_fusion", True),
            work=[self.work],
            programs=counter.programs,
            loaded=counter.requested["load"],
            stored=counter.requested["store"],
            must=counter.must,
            sectors=counter.sectors,
        )
        key = (launch.kernel, *sorted(values.items()), *launch.kinds.items(), launch.loaded, launch.must)
        known = self.found.setdefault(key, launch)
        if self.work not in known.work:
            known.work.append(self.work)


def kind_of(value: Any) -> str:
    """Triton's name of an argument's type."""
    if isinstance(value, torch.Tensor):
        return "*" + _KINDS[value.dtype]
    if isinstance(value, float):
        return "fp32"
    return "i32" if -(2**31) <= value < 2**31 else "i64"


def is_aligned(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return value.data_ptr() % 16 == 0
    return isinstance(value, int) and value % 16 == 0


def messages(
    floats: int, table: dict[str, list[int | list[int]]]
) -> Iterator[tuple[str, Callable[[], object]]]:
    """Rows of a matrix packed through an index, and unpacked: whole, added, and summed by a sparse matrix.

    Messages of several bit widths are summed only: other kernels are launched for each width.
    """
    for columns, kinds in table.items():
        width, generator = int(columns), torch.Generator().manual_seed(0)
        count = max(4, floats // width) // 4 * 4
        source = torch.randn(2 * count, width, generator=generator)
        half = torch.randperm(2 * count, generator=generator)[:count].sort().values
        target, order = torch.zeros(count, width), torch.randperm(count, generator=generator)
        for bits in kinds:
            widths = bits if isinstance(bits, list) else [bits]
            layout = codec.MessageLayout(np.resize(widths, count), width)
            buffer = torch.empty(layout.size_bytes, dtype=torch.uint8)
            pack = partial(codec.pack, source, half, layout, buffer, key=1, rows=np.arange(count))
            told = f"{', '.join(map(str, widths))} bits, {width} columns"
            if len(widths) == 1:
                yield f"pack, {told}", partial(pack, implementation="triton")
                yield (
                    f"unpack, {told}",
                    partial(codec.unpack, buffer, layout, target, implementation="triton"),
                )
                add = partial(codec.unpack_add, buffer, layout, order, target)
                yield f"unpack and add, {told}", partial(add, implementation="triton")
            for often in (1, 4):
                rows = torch.arange(0, often * count + 1, 4)
                weight, total = torch.ones(often * count), torch.zeros(len(rows) - 1, width)
                add = partial(
                    codec.unpack_aggregate, buffer, layout, rows, order.repeat(often), weight, total
                )
                uses = "once" if often == 1 else f"{often} times"
                yield f"aggregate, each message {uses}, {told}", partial(add, implementation="triton")


def gradients(
    floats: int, codecs: list[tuple[str, dict[str, Any]]]
) -> Iterator[tuple[str, Callable[[], object]]]:
    """Gradients of three tensors encoded with and without feedback, and the payloads of four ranks added up."""
    segments = Segments([floats // 2, floats // 2 - 777, 777])
    gradient = torch.randn(segments.total, generator=torch.Generator().manual_seed(0))
    for name, options in codecs:
        coder = make(name, implementation="triton", **options)
        out = torch.empty(coder.size_bytes(segments), dtype=torch.uint8)
        for memory in (torch.zeros(max(1, len(coder.memories)), segments.total).squeeze(0), None):
            if memory is None or coder.memories:
                kept = "with feedback" if memory is not None else "without feedback"
                yield f"{name}, encode {kept}", partial(coder.encode, gradient, memory, segments, out, seed=1)
        total = torch.empty(segments.total)
        yield f"{name}, decode", partial(coder.decode_sum, [out] * 4, segments, total, seed=1)


ROWS = {"messages": messages, "gradients": gradients}


def main() -> None:
    row, preset = sys.argv[1], msgspec.json.decode(sys.argv[2])
    with Launches() as launches:
        for launches.work, action in ROWS[row](*preset):
            action()
    print(msgspec.json.encode(list(launches.found.values())).decode())


if __name__ == "__main__":
    main()
