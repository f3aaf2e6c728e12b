"""MSCCL algorithms as XML, in the dialects of microsoft/msccl and of Azure's executor.

Every attribute that either parser requires is written in both; the dialects differ in the name of reduce-scatter and
in the value of an unlimited size.
"""

from __future__ import annotations

import xml.etree.ElementTree as ET
from typing import Literal, cast

from wirewise.collective.exporters.msccl.model import (
    Algorithm,
    Dialect,
    Gpu,
    Place,
    Protocol,
    Step,
    ThreadBlock,
)
from wirewise.collective.relations import REDUCING, Collective
from wirewise.errors import ProgramError

__all__ = ["CALLS", "OTHER_CALLS", "dumps", "loads"]

CALLS: dict[Dialect, dict[str, Collective]] = {
    "microsoft": {
        "allreduce": "all_reduce",
        "allgather": "all_gather",
        "reduce": "reduce",
        "broadcast": "broadcast",
        "alltoall": "all_to_all",
        "reduce_scatter": "reduce_scatter",
    },
    "azure": {
        "allreduce": "all_reduce",
        "allgather": "all_gather",
        "reduce": "reduce",
        "broadcast": "broadcast",
        "alltoall": "all_to_all",
        "reducescatter": "reduce_scatter",
    },
}
"""Names of the collectives in a file."""
OTHER_CALLS: dict[Dialect, tuple[str, ...]] = {
    "microsoft": ("custom",),
    "azure": ("send", "recv", "gather", "scatter", "alltoallv"),
}
"""Names of calls that the parsers know and programs do not express."""

_NO_LIMIT = {"microsoft": 2**31 - 1, "azure": 0}
"""`maxBytes` without a limit. microsoft/msccl takes 128 MiB where none is given, and chooses an algorithm for sizes
below it only; this is the largest that every version reads."""


def dumps(algorithm: Algorithm, dialect: Dialect = "microsoft") -> str:
    """Format an algorithm as XML.

    Raises:
        ProgramError: The dialect has no name for the collective.
    """
    names = {ours: theirs for theirs, ours in CALLS[dialect].items()}
    if algorithm.collective not in names:
        raise ProgramError(
            f"algorithm {algorithm.name!r} is a {algorithm.collective}; expected one of {', '.join(names)}"
        )
    root = ET.Element("algo")
    _set(
        root,
        name=algorithm.name,
        proto=algorithm.protocol,
        nchannels=algorithm.channels,
        nchunksperloop=algorithm.chunks_per_loop,
        ngpus=len(algorithm.gpus),
        coll=names[algorithm.collective],
        inplace=int(algorithm.in_place),
        outofplace=int(algorithm.out_of_place),
        minBytes=algorithm.min_bytes,
        maxBytes=algorithm.max_bytes or _NO_LIMIT[dialect],
    )
    if algorithm.collective in REDUCING:
        root.set("redop", "sum")
    for rank, gpu in enumerate(algorithm.gpus):
        _add_gpu(root, rank, gpu)
    ET.indent(root)
    return ET.tostring(root, encoding="unicode") + "\n"


def loads(text: str, dialect: Dialect = "microsoft") -> Algorithm:
    """Read an algorithm whose form is right; `wirewise.collective.exporters.msccl.validate` finds faults.

    Raises:
        ProgramError: The text is not XML, or an attribute is missing or not a number.
    """
    try:
        return _algorithm(ET.fromstring(text), dialect)
    except ET.ParseError as error:
        raise ProgramError(f"cannot read an MSCCL algorithm: {error}; expected XML") from error
    except (KeyError, ValueError) as error:
        raise ProgramError(
            f"cannot read an MSCCL algorithm: {type(error).__name__} {error}; "
            "`msccl.validate.violations` lists what is wrong with the file"
        ) from error


def _set(node: ET.Element, **attributes: str | int) -> None:
    for name, value in attributes.items():
        node.set(name, str(value))


def _add_gpu(root: ET.Element, rank: int, gpu: Gpu) -> None:
    node = ET.SubElement(root, "gpu")
    _set(node, id=rank, i_chunks=gpu.input_chunks, o_chunks=gpu.output_chunks, s_chunks=gpu.scratch_chunks)
    for number, block in enumerate(gpu.blocks):
        tb = ET.SubElement(node, "tb")
        _set(tb, id=number, send=block.send, recv=block.receive, chan=block.channel)
        for index, step in enumerate(block.steps):
            _add_step(ET.SubElement(tb, "step"), index, step)


def _add_step(node: ET.Element, index: int, step: Step) -> None:
    source, target = step.source or step.target, step.target or step.source
    # A buffer has to be named even where none is used.
    source, target = source or Place("i", -1), target or Place("o", -1)
    block, number = step.waits_for or (-1, -1)
    _set(node, s=index, type=step.kind, srcbuf=source.buffer, srcoff=source.offset)
    _set(node, dstbuf=target.buffer, dstoff=target.offset, cnt=step.chunks)
    _set(node, depid=block, deps=number, hasdep=int(step.awaited))


def _algorithm(root: ET.Element, dialect: Dialect) -> Algorithm:
    own = root.attrib
    in_place = own["inplace"] == "1"
    max_bytes = int(own.get("maxBytes", 2**27))
    collective: Collective | Literal["custom"] = CALLS[dialect].get(own["coll"], "custom")
    return Algorithm(
        name=own["name"],
        collective=collective,
        channels=int(own["nchannels"]),
        chunks_per_loop=int(own["nchunksperloop"]),
        protocol=cast(Protocol, own["proto"]),
        in_place=in_place,
        out_of_place=own["outofplace"] == "1" if dialect == "azure" else not in_place,
        min_bytes=int(own.get("minBytes", "0")),
        max_bytes=0 if max_bytes == _NO_LIMIT[dialect] else max_bytes,
        gpus=tuple(_gpu(node) for node in sorted(root.iter("gpu"), key=lambda n: int(n.attrib["id"]))),
    )


def _gpu(node: ET.Element) -> Gpu:
    own = node.attrib
    blocks = sorted(node.iter("tb"), key=lambda n: int(n.attrib["id"]))
    return Gpu(int(own["i_chunks"]), int(own["o_chunks"]), int(own["s_chunks"]), tuple(map(_block, blocks)))


def _block(node: ET.Element) -> ThreadBlock:
    own = node.attrib
    steps = tuple(_step(step.attrib) for step in node.iter("step"))
    return ThreadBlock(int(own["send"]), int(own["recv"]), int(own["chan"]), steps)


def _step(own: dict[str, str]) -> Step:
    waits_for = int(own["depid"]), int(own["deps"])
    return Step(
        own["type"],
        Place(own["srcbuf"], int(own["srcoff"])),
        Place(own["dstbuf"], int(own["dstoff"])),
        int(own["cnt"]),
        waits_for if waits_for[0] >= 0 else None,
        own["hasdep"] == "1",
    )
