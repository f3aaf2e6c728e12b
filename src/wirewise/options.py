"""Option records: meaning and range of a field are declared once, for checks, the command line and its help.

The type of a field carries it: `workers: Annotated[int, about("Ranks, one part of the graph each.", ge=1)] = 4`.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from math import isfinite
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta

from wirewise.errors import InputError
from wirewise.units import parse_links, parse_rate

__all__ = [
    "OWN_RATE",
    "Count",
    "Dataset",
    "Distinct",
    "Dropout",
    "Field",
    "Hidden",
    "HostNetwork",
    "LearningRate",
    "Link",
    "Links",
    "Natural",
    "Network",
    "Options",
    "Positive",
    "Rate",
    "Seed",
    "Share",
    "Timeout",
    "about",
    "check_links",
    "check_spread",
    "fields_of",
]


def about(
    description: str = "",
    *,
    option: str = "",
    alias: str = "",
    words: Iterable[str] = (),
    once: bool = False,
    check: Callable[[Any], object] | None = None,
    read: Callable[[str], object] | None = None,
    **bounds: float,
) -> Meta:
    """Describe a field, as metadata beside its type.

    Args:
        description: Noun phrase for the help; a field without one is no command-line option.
        option: Name on the command line. Defaults to the field's name.
        alias: Second name on the command line.
        words: Allowed strings, or allowed elements of several.
        once: Whether at least one entry is required, without duplicates.
        check: Function of the value that raises InputError.
        read: Function from the command line's text to the value.
        bounds: Bounds ge, gt, le and lt for numbers, as in `msgspec.Meta`.
    """
    more = {
        "option": option,
        "also": alias,
        "words": tuple(words),
        "once": once,
        "check": check,
        "read": read,
    }
    extra = {name: value for name, value in more.items() if value}
    return Meta(description=description or None, extra=extra, **bounds)  # type: ignore[call-overload, no-any-return]


Count = Annotated[int, about(ge=1)]
Natural = Annotated[int, about(ge=0)]
Positive = Annotated[float, about(gt=0)]
Share = Annotated[float, about(ge=0, le=1)]
Rate = Annotated[str, about(check=parse_rate)]
Distinct = Annotated[tuple[str, ...], about(once=True)]
"""Distinct words, at least one."""

Dataset = Annotated[str, about("Dataset name (`wirewise data list`) or path of an .npz file.")]
Link = Annotated[Rate, about("Rate of each host's link in the lab.")]
Links = Annotated[
    dict[int, str], about("Hosts whose rate differs, such as 2=50mbit,3=1gbit.", read=parse_links)
]
Seed = Annotated[Natural, about("Random seed.")]
Hidden = Annotated[Count, about("Hidden width.")]
Dropout = Annotated[float, about("Dropout probability.", ge=0, lt=1)]
LearningRate = Annotated[Positive, about("Learning rate of Adam.")]
Timeout = Annotated[
    Positive,
    about("Timeout, in seconds, after which a rank that does not respond ends the job.", option="--timeout"),
]

Network = Annotated[
    Literal["auto", "lab", "slurm", "loopback"],
    about(
        "lab: hosts with shaped links; slurm: those of the allocation that this runs in; loopback: this machine; auto: "
        "slurm inside of an allocation, else the lab where it can be had."
    ),
]
HostNetwork = Annotated[
    Literal["auto", "lab", "slurm"],
    about(
        "lab: hosts with shaped links; slurm: those of the allocation that this runs in; auto: slurm inside of an "
        "allocation, else the lab."
    ),
]
OWN_RATE = "their own rate"
"""Word for the rate of links that no lab shapes."""

_BOUNDS = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}


def check_links(links: Mapping[int, str], hosts: int) -> None:
    """Check link rates of individual hosts.

    Raises:
        InputError: A rate is invalid, or its host does not exist.
    """
    for host, rate in links.items():
        parse_rate(rate)
        if not 0 <= host < hosts:
            raise InputError(
                f"links name host {host}; expected hosts 0 to {hosts - 1}, or more hosts (--hosts)"
            )


def check_spread(workers: int, hosts: int) -> None:
    """Raise unless the workers divide evenly over the hosts."""
    if workers % hosts:
        raise InputError(
            f"{workers} workers cannot be spread evenly over {hosts} hosts; choose a number of workers that is a "
            "multiple of the hosts"
        )


class Field(NamedTuple):
    """Field of an option record."""

    name: str
    kind: Any
    """Type without metadata and without None."""
    optional: bool
    default: Any
    """Default value; `msgspec.NODEFAULT` if the field is required."""
    annotated: Any
    """Type as written, with its metadata."""
    bounds: Mapping[str, float]
    """Numeric bounds, by their names in `msgspec.Meta`."""
    description: str
    """Text for the help; empty if the field is no command-line option."""
    extra: Mapping[str, Any]

    @property
    def option(self) -> str:
        """Name on the command line."""
        return str(self.extra.get("option", f"--{self.name.replace('_', '-')}"))

    @property
    def words(self) -> tuple[str, ...]:
        """Allowed strings; empty if any string is allowed."""
        return tuple(get_args(self.kind) if get_origin(self.kind) is Literal else self.extra.get("words", ()))

    @property
    def several(self) -> bool:
        """Whether values are tuples or lists."""
        return get_origin(self.kind) in (tuple, list)

    @property
    def range(self) -> str:
        """Allowed values, in words; empty if the type says all."""
        if self.words:
            limits = f"{'some' if self.several else 'one'} of: {', '.join(self.words)}"
        elif {"ge", "le"} <= set(self.bounds):
            limits = "from {ge:g} to {le:g}".format(**self.bounds)
        else:
            limits = " and ".join(
                f"{word} {self.bounds[name]:g}" for name, word in _BOUNDS.items() if name in self.bounds
            )
        if not self.extra.get("once"):
            return limits
        return f"{limits or 'at least one'}, each once"

    def check(self, value: Any, name: str = "", display: Any = None) -> None:
        """Check a value against the field's constraints.

        Args:
            value: Value of the field.
            name: Name of the field in messages. Defaults to the field's own.
            display: Text shown in messages in place of the value, such as the text it was parsed from.

        Raises:
            InputError: The value is invalid; the message has the name, the value and the range.
        """
        name = name or self.name
        if value is None and self.optional:
            return
        if not self._holds(value):
            raise InputError(
                f"{name} is {value if display is None else display!r}; expected {self._expected(value)}"
            )
        try:
            self.extra.get("check", lambda _: None)(value)
        except InputError as error:
            raise InputError(f"{name}: {error}") from error

    def _holds(self, value: Any) -> bool:
        try:
            msgspec.convert(value, self.annotated)
        except msgspec.ValidationError:
            return False
        entries = list(value) if self.several else [value]
        if any(isinstance(one, int | float) and not _is_plain(one) for one in entries):
            return False
        if get_origin(self.kind) is tuple and not entries and self.range and self.default:
            return False
        if self.extra.get("once") and len(set(entries)) < len(entries):
            return False
        return not self.words or set(entries) <= set(self.words)

    def _expected(self, value: Any) -> str:
        noun = ""
        if self.kind is float:
            noun = "a number " if {"le", "lt"} & set(self.bounds) else "a finite number "
            noun += "of " * self.range.startswith("at ")
        elif self.kind is int and not (isinstance(value, int) and _is_plain(value)):
            noun = "a whole number of 64 bits, "
        return f"{noun}{self.range}".rstrip(" ,") or f"{self.kind}"


def _is_plain(number: float) -> bool:
    """Whether a number is one that files and arrays hold."""
    return isfinite(number) if isinstance(number, float) else abs(number) < 2**63


class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Record whose fields are validated on construction.

    Raises:
        InputError: A value is outside the range of its field.
    """

    def __post_init__(self) -> None:
        for field in fields_of(type(self)):
            field.check(getattr(self, field.name))


@lru_cache
def fields_of(record: type[msgspec.Struct]) -> tuple[Field, ...]:
    """All fields of a record, in order."""
    hints = get_type_hints(record, include_extras=True)
    return tuple(_field(one, hints[one.name]) for one in msgspec.structs.fields(record))


def _field(one: msgspec.structs.FieldInfo, hint: Any) -> Field:
    kind, metas, optional = _parts(hint)
    if get_origin(kind) in (tuple, list):
        metas = [*metas, *_parts(get_args(kind)[0])[1]]
    bounds = {
        name: value
        for meta in reversed(metas)
        for name in _BOUNDS
        if (value := getattr(meta, name)) is not None
    }
    default = one.default if one.default_factory is msgspec.NODEFAULT else one.default_factory()
    said = next((meta.description for meta in metas if meta.description), "")
    extra = {key: value for meta in reversed(metas) for key, value in (meta.extra or {}).items()}
    return Field(one.name, kind, optional, default, hint, bounds, said, extra)


def _parts(hint: Any) -> tuple[Any, list[Meta], bool]:
    """Plain type, what is said of it, the outermost first, and whether it may be None."""
    if get_origin(hint) is Annotated:
        kind, metas, optional = _parts(hint.__origin__)
        return kind, [*(one for one in hint.__metadata__[::-1] if isinstance(one, Meta)), *metas], optional
    if get_origin(hint) in (Union, types.UnionType) and type(None) in get_args(hint):
        (own,) = (kind for kind in get_args(hint) if kind is not type(None))
        kind, metas, _ = _parts(own)
        return kind, metas, True
    return hint, [], False
