"""Command-line sources: a name, or a file recognised by its content."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from wirewise import collective, plans
from wirewise.collective import Program
from wirewise.collective.builders import build
from wirewise.decoding import decode_json
from wirewise.errors import InputError, ProgramError, WirewiseError
from wirewise.plans import CollectivePlan
from wirewise.report.pictures import is_page

__all__ = ["family_of", "is_msccl", "is_name", "kind_of", "plan_of", "program_of"]


def is_name(source: str) -> bool:
    """Whether a source is COLLECTIVE[:ALGORITHM[:RANKS]] and not a file."""
    return source.split(":")[0].replace("-", "_") in collective.COLLECTIVES and not Path(source).exists()


def is_msccl(source: str) -> bool:
    """Whether a file starts like XML; programs and plans are JSON, which never does."""
    try:
        with Path(source).open("rb") as file:
            return file.read(256).removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"<")
    except OSError:
        return False


def kind_of(source: str) -> str:
    """Detect the kind of a source: name, trace, page, msccl, mscclpp, program, else plan."""
    if is_name(source):
        return "name"
    path = Path(source)
    if path.is_dir() or path.suffix in (".jsonl", ".gz"):
        return "trace"
    if is_page(source):
        return "page"
    if is_msccl(source):
        return "msccl"
    head = _json(source)
    if isinstance(head, list) or (isinstance(head, dict) and "traceEvents" in head):
        return "trace"
    if isinstance(head, dict) and "gpus" in head and "kind" not in head:
        return "mscclpp"
    return "program" if isinstance(head, dict) and head.get("kind") == "program" else "plan"


def family_of(source: str) -> str | None:
    """Detect the family of the plan in a file; None if it holds none."""
    head = _json(source)
    family = head.get("family") if isinstance(head, dict) else None
    return family if isinstance(family, str) else None


def plan_of(source: str) -> CollectivePlan | None:
    """Read the collective plan in a file; None if it holds none."""
    try:
        found = plans.load(source)
    except WirewiseError:
        return None
    return found if isinstance(found, CollectivePlan) else None


def program_of(source: str) -> Program:
    """Read a program from a program file, a collective plan, or COLLECTIVE:ALGORITHM:RANKS.

    Raises:
        InputError: The file does not exist, and the text is no such name.
        ProgramError: The file holds no program, or the algorithm is unknown.
    """
    words = source.replace("-", "_").split(":")
    if len(words) == 3 and is_name(source) and words[0] in collective.COLLECTIVES:
        if not words[2].isdecimal():
            raise InputError(f"got {words[2]!r} ranks in {source!r}; expected such as all_reduce:ring:8")
        return build(words[0], words[1], int(words[2]))
    try:
        head: Any = decode_json(Path(source).read_bytes())
    except OSError as error:
        raise InputError(
            f"cannot read {source!r}: {error.strerror}; expected a program file, a plan of a collective, or an "
            "algorithm such as all_reduce:ring:8"
        ) from error
    except msgspec.DecodeError:
        head = None
    if not isinstance(head, dict) or "program" not in head:
        return collective.load(source)
    try:
        # Other figures of a plan do not matter here.
        return collective.loads(msgspec.json.encode(head["program"]))
    except ProgramError as error:
        raise ProgramError(f"{source}, `$.program`: {error}") from error


def _json(source: str) -> Any:
    """Content of a JSON file; None if it cannot be read."""
    try:
        return decode_json(Path(source).read_bytes())
    except (OSError, msgspec.DecodeError):
        return None
