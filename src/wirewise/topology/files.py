"""Topologies as TOML: parsed with the line of every fault, and written so that they read back equal."""

from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path
from typing import Any

import msgspec

from wirewise.errors import InputError, TopologyError
from wirewise.files import atomic_file
from wirewise.topology.clusters import cluster
from wirewise.topology.model import MisplacedError, Topology

__all__ = ["dumps", "load", "loads", "save"]

_AT = re.compile(r"(?P<reason>.*?)(?: - at `\$\.?(?P<path>.*)`)?", re.DOTALL)
_PATH = re.compile(r"(\w+)(?:\[(\d+)\])?(?:\.(\w+))?")
_FIELD = re.compile(r"unknown field `(\w+)`")
_MUST_ESCAPE = re.compile(r'[\x00-\x1f\x7f"\\]')


class _Cluster(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Table of a file for many machines of the kind that it describes."""

    count: int
    fabric: str = "switch"

    @classmethod
    def read(cls, table: Any) -> _Cluster | None:
        try:
            return None if table is None else msgspec.convert(table, cls)
        except msgspec.ValidationError as error:
            reason, path = _explain(str(error))[::-1]
            raise MisplacedError(f"cluster.{path}" if path else "cluster", reason) from error

    def of(self, machine: Topology) -> Topology:
        try:
            return cluster(machine, self.count, self.fabric, name=machine.name)
        except TopologyError as error:
            raise MisplacedError("cluster", str(error)) from error


def loads(text: str, *, source: str = "topology") -> Topology:
    """Parse a topology.

    Args:
        text: TOML with `name`, tables `[[hosts]]`, `[[devices]]`, `[[switches]]` and `[[links]]`; the keys are the
            fields of `Topology`, `Host`, `Device`, `Switch` and `Link`. With a table `[cluster]` of `count` and
            `fabric` they describe one machine, and the topology is a cluster of them (`clusters.cluster`).
        source: Name of the text in messages, such as its file.

    Raises:
        TopologyError: The text is not TOML, has an unknown or missing key, a wrong value or an inconsistency; the
            message names `source`, the line and the path.
    """
    try:
        read = tomllib.loads(text)
        many = _Cluster.read(read.pop("cluster", None))
        found = msgspec.convert(read, Topology)
        return found if many is None else many.of(found)
    except tomllib.TOMLDecodeError as error:
        place = re.search(r"line (\d+)", str(error))
        line = int(place[1]) if place else text.count("\n") + 1
        raise TopologyError(f"{source}, line {line}: no TOML: {error}; mend the named place") from error
    except RecursionError as error:
        raise TopologyError(
            f"{source}: values are nested too deeply; expected tables of plain values"
        ) from error
    except MisplacedError as error:
        path, reason = error.path, error.reason
    except msgspec.ValidationError as error:
        path, reason = _explain(str(error))
    raise TopologyError(f"{source}, line {_line(text, path)}: {path or 'topology'}: {reason}")


def load(path: str | os.PathLike[str]) -> Topology:
    """Read a topology file.

    Raises:
        InputError: The file cannot be read.
        TopologyError: Raised by `loads`.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(
            f"cannot read topology file {os.fspath(path)!r}: {error.strerror}; check the path"
        ) from error
    except UnicodeDecodeError as error:
        raise TopologyError(f"{os.fspath(path)}: no UTF-8 text ({error}); expected a TOML file") from error
    return loads(text, source=os.fspath(path))


def dumps(topology: Topology) -> str:
    """Format a topology as TOML, which `loads` reads back equal."""
    plain: dict[str, Any] = msgspec.to_builtins(topology)
    tables = {key: plain.pop(key) for key in ("hosts", "devices", "switches", "links")}
    blocks = ["".join(_line_of(key, value) for key, value in plain.items())]
    for key, members in tables.items():
        blocks += [f"[[{key}]]\n" + "".join(_line_of(k, v) for k, v in m.items()) for m in members]
    return "\n".join(blocks)


def save(topology: Topology, path: str | os.PathLike[str]) -> None:
    """Write a topology file atomically.

    Raises:
        InputError: The file cannot be written.
    """
    with atomic_file(path) as file:
        file.write(dumps(topology).encode())


def _line_of(key: str, value: str | float) -> str:
    if isinstance(value, int):
        return f"{key} = {value}\n"
    if isinstance(value, str):
        return f'{key} = "{_MUST_ESCAPE.sub(_escape, value)}"\n'
    return f"{key} = {float(value)!r}\n"


def _escape(match: re.Match[str]) -> str:
    return f"\\{match[0]}" if match[0] in '"\\' else f"\\u{ord(match[0]):04x}"


def _explain(message: str) -> tuple[str, str]:
    """Path and reason of a message of msgspec; the path of an unknown key leads to the key itself."""
    match = _AT.fullmatch(message)
    assert match is not None
    path, reason = match["path"] or "", match["reason"]
    unknown = _FIELD.search(reason)
    if unknown is not None:
        path = f"{path}.{unknown[1]}" if path else unknown[1]
        return path, "unknown key; expected a field of wirewise.topology"
    return path, f"{reason[:1].lower()}{reason[1:]}"


def _line(text: str, path: str) -> int:
    """Number of the line that a path leads to, or of the nearest place around it."""
    match = _PATH.fullmatch(path)
    lines = text.splitlines()
    if match is None:
        return 1
    table, number, key = match[1], match[2], match[3]
    own = re.compile(rf"\s*\[\s*{table}\s*\]\s*(#.*)?")
    for line in (n for n, words in enumerate(lines, 1) if own.fullmatch(words)):
        return (_key_line(lines, line, key) if key else None) or line
    if number is None:
        return _key_line(lines, 0, table) or _header_line(lines, table, 0) or 1
    header = _header_line(lines, table, int(number))
    if header is None:  # an array in one value: links = [{...}, {...}]
        return _key_line(lines, 0, table) or 1
    return (_key_line(lines, header, key) if key else None) or header


def _header_line(lines: list[str], table: str, number: int) -> int | None:
    header = re.compile(rf"\s*\[\[\s*{table}\s*\]\]\s*(#.*)?")
    found = [n for n, line in enumerate(lines, 1) if header.fullmatch(line)]
    for line in found[number:]:
        try:
            # What looks like a header may be part of a text; TOML cut off behind a real one is still TOML.
            if len(tomllib.loads("\n".join(lines[:line]))[table]) == number + 1:
                return line
        except (tomllib.TOMLDecodeError, KeyError, TypeError):
            continue
    return None


def _key_line(lines: list[str], header: int, key: str) -> int | None:
    """Line of a key between a header's line (0: the top of the file) and the next header."""
    wanted = re.compile(rf"""\s*["']?{key}["']?\s*=""")
    for number, line in enumerate(lines[header:], header + 1):
        if line.lstrip().startswith("["):
            return None
        if wanted.match(line):
            return number
    return None
