"""Rules on the form of an MSCCL file: attributes, numbers, limits, references."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from wirewise.collective.exporters.msccl.model import KINDS, PROTOCOLS, Dialect, Limits, limits
from wirewise.collective.exporters.msccl.xml import CALLS, OTHER_CALLS

__all__ = ["Violation", "form_violations"]

_NUMBERS = {
    "algo": ("ngpus", "nchannels", "nchunksperloop", "inplace"),
    "gpu": ("id", "i_chunks", "o_chunks", "s_chunks"),
    "tb": ("id", "send", "recv", "chan"),
    "step": ("s", "srcoff", "dstoff", "cnt", "depid", "deps", "hasdep"),
}
_MOST_DIGITS = 18
"""The parsers hold 32 bits, and Python takes long for thousands of digits."""
_TEXTS = {"algo": ("name", "proto", "coll"), "gpu": (), "tb": (), "step": ("type", "srcbuf", "dstbuf")}
_AZURE_NUMBERS = ("outofplace", "minBytes", "maxBytes")
_OPTIONAL_NUMBERS = ("outofplace", "minBytes", "maxBytes", "nthreads")


class Violation(NamedTuple):
    """Violation of a rule by a file."""

    rule: str
    """One of `validate.RULES`."""
    where: str
    message: str


def form_violations(root: ET.Element, dialect: Dialect) -> Iterator[Violation]:
    """Find violations of the form; if attributes are missing or not numbers, only these."""
    if root.tag != "algo":
        yield Violation("xml", "file", f"got the element {root.tag!r}; expected `algo`")
        return
    bad = list(_attribute_violations(root, dialect))
    yield from bad
    if bad:
        return
    bounds = limits(dialect)
    yield from _size_violations(root, bounds)
    yield from _algo_violations(root, dialect, bounds)
    for gpu in root.iter("gpu"):
        yield from _gpu_violations(gpu, root, bounds)
        steps = {_number(tb, "id"): list(tb.iter("step")) for tb in gpu.iter("tb")}
        for tb in gpu.iter("tb"):
            yield from _block_violations(tb, gpu, root, bounds)
            for index, step in enumerate(tb.iter("step")):
                yield from _step_violations(step, index, tb, gpu, bounds)
                yield from _wait_violations(step, _where(gpu, tb, index), tb, steps, bounds)
            yield from _chain_violations(tb, _where(gpu, tb))


def _number(node: ET.Element, name: str, default: int = 0) -> int:
    return int(node.get(name, default))


def _where(gpu: ET.Element, tb: ET.Element | None = None, index: int | None = None) -> str:
    words = [f"gpu {gpu.get('id')}"]
    if tb is not None:
        words.append(f"tb {tb.get('id')}")
    if index is not None:
        words.append(f"step {index}")
    return ", ".join(words)


def _attribute_violations(root: ET.Element, dialect: Dialect) -> Iterator[Violation]:
    for node in root.iter():
        if node.tag not in _NUMBERS:
            continue
        extra = _AZURE_NUMBERS if node.tag == "algo" and dialect == "azure" else ()
        numbers = (*_NUMBERS[node.tag], *extra)
        for name in (*numbers, *_TEXTS[node.tag]):
            if name not in node.attrib:
                yield Violation(
                    "attribute", f"<{node.tag} {_short(node)}>", f"attribute {name} is missing; add it"
                )
        optional = _OPTIONAL_NUMBERS if node.tag == "algo" else ()
        for name in sorted({*numbers, *optional} & {*node.attrib}):
            if not _is_integer(node.attrib[name]):
                said = f"{name} is {node.attrib[name]!r}; expected an integer"
                yield Violation("integer", f"<{node.tag} {_short(node)}>", said)


def _is_integer(text: str) -> bool:
    return text.removeprefix("-").isdecimal() and text.isascii() and len(text) <= _MOST_DIGITS


def _short(node: ET.Element) -> str:
    return " ".join(f'{k}="{v[:20]}"' for k, v in list(node.attrib.items())[:3])


def _size_violations(root: ET.Element, bounds: Limits) -> Iterator[Violation]:
    for node in root.iter():
        where = f"<{node.tag} {_short(node)}>"
        if len(node.attrib) > bounds.attributes:
            yield Violation("attributes", where, f"has {len(node.attrib)}; leave out what no parser asks for")
        if len(node) > bounds.children:
            yield Violation("children", where, f"has {len(node)}; expected at most {bounds.children}")
        for name, value in node.attrib.items():
            most = bounds.name if (node.tag, name) == ("algo", "name") else bounds.text
            if len(value) > most:
                yield Violation("text", where, f"{name} has {len(value)} characters; expected at most {most}")
    gpus = list(root.iter("gpu"))
    for gpu in gpus:
        stored = 1 + len(gpus) + sum(1 for _ in gpu.iter()) - 1
        if stored > bounds.nodes:
            yield Violation(
                "nodes",
                _where(gpu),
                f"stores {stored} elements, expected at most {bounds.nodes}; use fewer instances or chunks",
            )


def _algo_violations(root: ET.Element, dialect: Dialect, bounds: Limits) -> Iterator[Violation]:
    own = root.attrib
    if own["proto"] not in PROTOCOLS:
        yield Violation("protocol", "algo", f"got {own['proto']!r}; expected one of {', '.join(PROTOCOLS)}")
    calls = (*CALLS[dialect], *OTHER_CALLS[dialect])
    if own["coll"] not in calls:
        yield Violation("collective", "algo", f"got {own['coll']!r}; expected one of {', '.join(calls)}")
    places = [own["inplace"], *([own["outofplace"]] if dialect == "azure" else [])]
    if not {*places} <= {"0", "1"} or (dialect == "azure" and "1" not in places):
        yield Violation(
            "place", "algo", f"got {' and '.join(places)}; set the one it is for to 1, others to 0"
        )
    least, most = _number(root, "minBytes"), _number(root, "maxBytes", 2**27)
    if least < 0 or (least >= most and (dialect, most) != ("azure", 0)):
        yield Violation("bytes", "algo", f"no size is from {least} to below {most}; raise maxBytes")
    if _number(root, "nthreads", 32) % 32 or _number(root, "nthreads", 32) < 1:
        yield Violation("threads", "algo", f"got {own['nthreads']}; expected a multiple of 32")
    if _number(root, "nchunksperloop") < 1:
        yield Violation("loop", "algo", f"got {own['nchunksperloop']}; expected at least 1")
    if not 1 <= _number(root, "nchannels") <= bounds.channels:
        yield Violation("channels", "algo", f"got {own['nchannels']}; expected 1 to {bounds.channels}")
    ids = sorted(_number(gpu, "id") for gpu in root.iter("gpu"))
    if ids != list(range(_number(root, "ngpus"))):
        yield Violation("gpus", "algo", f"got gpus {ids} for ngpus={own['ngpus']}; write each rank once")


def _gpu_violations(gpu: ET.Element, root: ET.Element, bounds: Limits) -> Iterator[Violation]:
    where, loop, ranks = _where(gpu), _number(root, "nchunksperloop"), _number(root, "ngpus")
    parts = {
        "i_chunks": ranks if root.get("coll") == "allgather" else 1,
        "o_chunks": ranks if root.get("coll") in ("reduce_scatter", "reducescatter") else 1,
    }
    free = root.get("coll") in OTHER_CALLS["azure"]
    for name in ("i_chunks", "o_chunks", "s_chunks"):
        value, times = _number(gpu, name), parts.get(name)
        if value < 0 or (value and times and not free and value * times != loop):
            said = f"{name} is {value}; expected 0 or {loop // (times or 1)}, as nchunksperloop is {loop}"
            yield Violation("chunks", where, said)
    blocks = list(gpu.iter("tb"))
    ids = [_number(tb, "id") for tb in blocks]
    if sorted(ids) != list(range(len(ids))):
        yield Violation("block ids", where, f"got {sorted(ids)}; number thread blocks from 0 without a gap")
    if len(blocks) > bounds.blocks:
        said = f"has {len(blocks)} thread blocks; expected at most {bounds.blocks}: use fewer channels"
        yield Violation("blocks", where, said)
    for side in ("send", "recv"):
        yield from _connection_violations(blocks, side, where, bounds)


def _connection_violations(
    blocks: Sequence[ET.Element], side: str, where: str, bounds: Limits
) -> Iterator[Violation]:
    used = [(_number(tb, side), _number(tb, "chan")) for tb in blocks if _number(tb, side) >= 0]
    for (peer, channel), times in Counter(used).items():
        if times > 1:
            said = f"{times} thread blocks have {side}={peer} on channel {channel}; use another channel"
            yield Violation("connection", where, said)
    for channel, times in Counter(channel for _, channel in used).items():
        if times > bounds.blocks_per_channel:
            said = f"{times} thread blocks {side} on channel {channel}; expected at most {bounds.blocks_per_channel}"
            yield Violation("blocks per channel", where, said)


def _block_violations(
    tb: ET.Element, gpu: ET.Element, root: ET.Element, bounds: Limits
) -> Iterator[Violation]:
    where, ranks = _where(gpu, tb), _number(root, "ngpus")
    for side in ("send", "recv"):
        peer = _number(tb, side)
        if peer != -1 and (not 0 <= peer < ranks or peer == _number(gpu, "id")):
            yield Violation("peers", where, f"{side} is {peer}; expected -1 or another rank below {ranks}")
    if not 0 <= _number(tb, "chan") < min(_number(root, "nchannels"), bounds.channels):
        said = (
            f"chan is {tb.get('chan')}; expected 0 to {min(_number(root, 'nchannels'), bounds.channels) - 1}"
        )
        yield Violation("channels", where, said)
    numbers = [_number(step, "s") for step in tb.iter("step")]
    if len(numbers) > bounds.steps or numbers != list(range(len(numbers))):
        said = f"has {len(numbers)} steps; expected at most {bounds.steps}, with s from 0 upwards"
        yield Violation("steps", where, said)


def _step_violations(
    step: ET.Element, index: int, tb: ET.Element, gpu: ET.Element, bounds: Limits
) -> Iterator[Violation]:
    where, own = _where(gpu, tb, index), step.attrib
    if own["type"] not in KINDS:
        hint = "; no interpreter carries out ra" if own["type"] == "ra" else ""
        said = f"got {own['type']!r}{hint}; expected one of {', '.join(KINDS)}"
        yield Violation("kind", where, said)
        return
    kind, count = KINDS[own["type"]], _number(step, "cnt")
    if not (count == 0 if own["type"] == "nop" else 1 <= count <= bounds.chunks):
        said = f"cnt is {count}; expected 1 to {bounds.chunks}, or 0 for a nop: split the step"
        yield Violation("count", where, said)
    for side, needed in (("send", kind.sends), ("recv", kind.receives)):
        if needed and _number(tb, side) < 0:
            yield Violation("peer needed", where, f"{own['type']} needs a {side} peer, and the tb has none")
    for end, needed in (("src", kind.reads), ("dst", kind.writes)):
        buffer, offset = own[f"{end}buf"], _number(step, f"{end}off")
        if buffer not in ("i", "o", "s"):
            yield Violation("buffer", where, f"{end}buf is {buffer!r}; expected i, o or s")
        elif needed and not 0 <= offset <= offset + count <= _number(gpu, f"{buffer}_chunks"):
            held = gpu.get(f"{buffer}_chunks")
            said = f"{buffer}[{offset}] to [{offset + count - 1}] is used, and the buffer has {held} chunks"
            yield Violation("range", where, said)


def _wait_violations(
    step: ET.Element, where: str, tb: ET.Element, others: Mapping[int, Sequence[ET.Element]], bounds: Limits
) -> Iterator[Violation]:
    block, number = _number(step, "depid"), _number(step, "deps")
    if (block, number) == (-1, -1):
        if step.get("type") == "nop":
            yield Violation(
                "nop", where, "waits for nothing, which breaks the numbering of steps; leave it out"
            )
        return
    if block == _number(tb, "id"):
        yield Violation("own block", where, "waits for its own thread block, whose steps are in order anyway")
    elif block not in others or not 0 <= number < len(others[block]):
        said = f"depid={block}, deps={number} is no step of this rank; set both to -1 to wait for nothing"
        yield Violation("dependence", where, said)
    else:
        if block > bounds.awaited_block:
            said = (
                f"waits for thread block {block}; expected at most {bounds.awaited_block}: give it a lower id"
            )
            yield Violation("8 bits", where, said)
        if others[block][number].get("hasdep") != "1":
            said = f"waits for thread block {block}, step {number}, which has no hasdep=1 and tells nobody"
            yield Violation("hasdep", where, said)


def _chain_violations(tb: ET.Element, where: str) -> Iterator[Violation]:
    pending = False
    for index, step in enumerate(tb.iter("step")):
        if step.get("type") == "nop":
            pending = True
        else:
            if pending and _number(step, "depid") < 0:
                said = "follows nops and waits for nothing itself; move the last wait of the chain to it"
                yield Violation("chain", f"{where}, step {index}", said)
            pending = False
    if pending:
        yield Violation("chain", where, "ends with a nop, which no step follows; leave it out")
