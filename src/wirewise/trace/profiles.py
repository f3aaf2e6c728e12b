"""JSON files of torch.profiler, plain or compressed, complete or truncated."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from wirewise.decoding import ArchiveError, decode_json, gunzip, is_gzip
from wirewise.errors import TraceError

__all__ = [
    "ProfileEvent",
    "ProfileFile",
    "collective_name",
    "item_bytes",
    "load",
    "read_json",
    "shapes",
    "tensor_bytes",
]

_ITEM_BYTES = {
    "bool": 1, "byte": 1, "char": 1, "int8": 1, "uint8": 1, "unsignedchar": 1, "signedchar": 1,
    "float8_e4m3fn": 1, "float8_e5m2": 1, "half": 2, "float16": 2, "bfloat16": 2, "short": 2, "int16": 2,
    "float": 4, "float32": 4, "int": 4, "int32": 4, "double": 8, "float64": 8, "long": 8, "longint": 8,
    "int64": 8, "complexfloat": 8, "complexdouble": 16,
}  # fmt: skip

# Longer names first: a reduce_scatter is also a scatter.
_COLLECTIVES = {
    "reducescatter": "reduce_scatter",
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "alltoall": "all_to_all",
    "broadcast": "broadcast",
    "barrier": "barrier",
    "recv": "recv",
    "send": "send",
}


_BARE = re.compile(rb"(?<=[:,\[])(\s*)[+-]?(?:inf(?:inity)?|nan)(?=\s*[,}\]])", re.IGNORECASE)
"""A number that JSON cannot express, as torch.profiler writes the bandwidth of a copy that took no time."""


class ProfileEvent(msgspec.Struct):
    """Event of a torch.profiler file."""

    ph: str = ""
    name: str = ""
    cat: str = ""
    pid: int | str = 0
    tid: int | str = 0
    ts: float = 0.0
    """Microseconds since the base time of the file."""
    dur: float = 0.0
    args: dict[str, Any] = {}

    @property
    def end(self) -> float:
        """End time, in microseconds."""
        return self.ts + self.dur


class ProfileFile(NamedTuple):
    """Contents of a file: events and other top-level entries."""

    head: dict[str, Any]
    events: list[ProfileEvent]
    complete: bool


def load(path: str | os.PathLike[str]) -> ProfileFile:
    """Read a torch.profiler file; a truncated one yields all complete events.

    Raises:
        TraceError: The file cannot be read, or is no JSON of torch.profiler.
    """
    text, complete = _text(path)
    try:
        head: Any = decode_json(text)
    except msgspec.DecodeError:
        head, ends = _repaired(text, path)
        complete = complete and ends
    if not isinstance(head, dict) or not isinstance(head.get("traceEvents"), list):
        raise TraceError(
            f"{os.fspath(path)} has no traceEvents; expected a file of torch.profiler's export_chrome_trace"
        )
    events = []
    for raw in head.pop("traceEvents"):
        try:
            events.append(msgspec.convert(raw, ProfileEvent, strict=False))
        except (msgspec.ValidationError, UnicodeEncodeError, OverflowError) as cause:
            raise TraceError(
                f"{os.fspath(path)}, event {len(events)}: {cause}; the file is damaged"
            ) from cause
    return ProfileFile(head, events, complete)


def read_json(path: str | os.PathLike[str]) -> Any:
    """Read a JSON file, plain or compressed.

    Raises:
        TraceError: It cannot be read or was cut off.
    """
    text, complete = _text(path)
    try:
        if complete:
            return decode_json(text)
        reason = "the archive ends too early"
    except msgspec.DecodeError as cause:
        reason = str(cause)
    raise TraceError(f"{os.fspath(path)} was cut off or is no JSON ({reason}); record it again")


def collective_name(text: str) -> str:
    """Collective denoted by a name of torch, NCCL or gloo; empty if none."""
    plain = "".join(c for c in text.lower() if c.isalnum())
    return next((name for part, name in _COLLECTIVES.items() if part in plain), "")


def tensor_bytes(shape: Any, kind: str) -> int:
    """Size of a tensor or of a list of tensors, in bytes; 0 if type or shape is unknown."""
    size = item_bytes(kind)
    if not isinstance(shape, list) or not shape or not size:
        return 0
    if all(isinstance(n, int) for n in shape):
        count = 1
        for n in shape:
            count *= n
        return count * size
    return sum(tensor_bytes(part, kind) for part in shape)


def item_bytes(kind: str) -> int:
    """Element size of a data type, in bytes; 0 if unknown."""
    plain = kind.lower().removeprefix("c10::").removeprefix("torch.").replace(" ", "")
    return _ITEM_BYTES.get(plain, 0)


def _text(path: str | os.PathLike[str]) -> tuple[bytes, bool]:
    """Content of the file, and whether it is whole as far as its archive tells."""
    try:
        raw = Path(path).read_bytes()
    except OSError as cause:
        raise TraceError(
            f"cannot read the trace {os.fspath(path)}: {cause.strerror}; check the path"
        ) from cause
    if not is_gzip(raw):
        return raw, True
    try:
        return gunzip(raw)
    except ArchiveError as cause:
        raise TraceError(f"{os.fspath(path)} is {cause}; copy it again") from cause


def _repaired(text: bytes, path: str | os.PathLike[str]) -> tuple[dict[str, Any], bool]:
    """Read a file that is no JSON: the top level up to the events, and all events before the first that is cut off.

    Returns:
        The top level with its events, and whether the events are complete.
    """
    whole = _BARE.sub(rb"\1null", text).decode("utf-8", errors="replace")
    try:
        # Names that are no text, or numbers that JSON does not have, in a file that is otherwise whole.
        return dict(decode_json(whole)), True
    except (msgspec.DecodeError, TypeError, ValueError):
        pass
    place = whole.find('"traceEvents"')
    start = whole.find("[", place)
    broken = TraceError(
        f"{os.fspath(path)} is no JSON, or was cut off before its first event; expected a file of torch.profiler"
    )
    if place < 0 or start < 0:
        raise broken
    try:
        head: dict[str, Any] = json.loads(whole[: start + 1] + "]}")
    except (json.JSONDecodeError, RecursionError) as cause:
        raise broken from cause
    events: list[Any] = head["traceEvents"]
    decoder = json.JSONDecoder()
    at = start + 1
    while True:
        while at < len(whole) and whole[at] in " \r\n\t,":
            at += 1
        try:
            event, at = decoder.raw_decode(whole, at)
        except (json.JSONDecodeError, RecursionError):
            break
        events.append(event)
    if not events:
        raise broken
    return head, False


def shapes(args: dict[str, Any]) -> Sequence[tuple[Any, str]]:
    """Shape and type of each input that an event names."""
    dims, kinds = args.get("Input Dims") or [], args.get("Input type") or []
    return list(zip(dims, map(str, kinds), strict=False))
