"""Changes of a job as text, such as "bandwidth=*:x0.5,ranks=8", and their effect on its graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from wirewise.collective.named import ALGORITHMS
from wirewise.cost.links import Links
from wirewise.errors import InputError
from wirewise.plans.fusion import DDP_BUCKET_BYTES
from wirewise.sim import rewrite
from wirewise.trace.dataflow import KINDS, Dataflow
from wirewise.units import parse_rate

__all__ = ["Change", "CodecEffect", "WhatIfJob", "apply", "parse"]

MIB = 2**20


class CodecEffect(NamedTuple):
    """Effect of a codec on a gradient."""

    ratio: float
    """Encoded bytes over original bytes."""
    encode_s_per_byte: float
    decode_s_per_byte: float


@dataclass(frozen=True, kw_only=True)
class WhatIfJob:
    """Job to which changes are applied."""

    dataflow: Dataflow
    links: Links
    algorithm: str = "ring"
    """Algorithm of all-reduces that a change rebuilds."""
    servers: int = 1
    skew: np.ndarray = field(default_factory=lambda: np.ones(1))
    """Compute time of ranks and steps relative to the mean, from which new ranks are sampled."""
    random: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))


@dataclass(frozen=True)
class Change:
    """Hypothetical change of a job, such as "ranks=8" or "bandwidth=x2"."""

    text: str
    """Text of the change as written by the user."""
    change: Callable[[WhatIfJob], WhatIfJob]


def parse(text: str, codecs: Mapping[str, CodecEffect] | None = None) -> list[Change]:
    """Parse comma-separated changes, which are applied in order.

    - ``bandwidth=[HOST or *:]xF or RATE``: rate of interfaces, such as x0.5 or 200mbit
    - ``latency=[HOST or *:][+]SECONDS``: latency between hosts; with +, added to the current one
    - ``ranks=N``: number of ranks, with copies of the current ones
    - ``bucket_mb=M``: gradient buckets of M MiB; 25: the default of DistributedDataParallel, whose first one has 1 MiB
    - ``straggler=RANK:xF``: that rank computes F times as long
    - ``scale=KIND or NAME:xF``: these ops take F times as long
    - ``no_communication``: communication takes no time
    - ``balanced``: in each step every rank computes as long as the mean rank does
    - ``accumulation=K``: K micro-batches per step, with one gradient exchange
    - ``algorithm=ring, tree, ps[:SERVERS] or hierarchical``: algorithm of the all-reduces
    - ``codec=NAME or ratio:encode:decode``: encoded gradients; seconds per byte

    Args:
        text: Changes, separated by commas.
        codecs: Measured codecs by name.

    Raises:
        InputError: A name is unknown, or a value is malformed.
    """
    changes = []
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        word, _, value = part.partition("=")
        if word == "codec":
            changes.append(Change(part, _codec(value, codecs or {})))
        elif word in _WORDS:
            changes.append(Change(part, _WORDS[word](value)))
        else:
            known = ", ".join(sorted([*_WORDS, "codec"]))
            raise InputError(f"got the change {part!r}; expected one of {known}")
    return changes


def apply(changes: list[Change], setting: WhatIfJob) -> WhatIfJob:
    """Apply all changes to a job."""
    for change in changes:
        setting = change.change(setting)
    return setting


def _bandwidth(value: str) -> Callable[[WhatIfJob], WhatIfJob]:
    host, amount = _target(value, "bandwidth")
    if amount.startswith("x"):
        factor = _number(amount[1:], "bandwidth", least=0.0)
        return lambda s: replace(s, links=s.links.scaled(factor, _host(host, s)))
    rate = np.inf if amount == "inf" else parse_rate(amount)

    def change(setting: WhatIfJob) -> WhatIfJob:
        links, chosen = setting.links, _host(host, setting)
        where = slice(None) if chosen is None else chosen
        out, into = links.bandwidth_out_bytes_per_s.copy(), links.bandwidth_in_bytes_per_s.copy()
        out[where] = into[where] = rate
        return replace(
            setting, links=replace(links, bandwidth_out_bytes_per_s=out, bandwidth_in_bytes_per_s=into)
        )

    return change


def _latency(value: str) -> Callable[[WhatIfJob], WhatIfJob]:
    host, amount = _target(value, "latency")
    seconds = _number(amount.removeprefix("+"), "latency", least=0.0, strictly=False)

    def change(setting: WhatIfJob) -> WhatIfJob:
        latency, chosen = setting.links.latency_s.copy(), _host(host, setting)
        where = ~np.eye(len(latency), dtype=bool)
        if chosen is not None:
            of_host = np.arange(len(latency)) == chosen
            where &= of_host[:, None] | of_host[None, :]
        latency[where] = seconds + (latency[where] if amount.startswith("+") else 0.0)
        return replace(setting, links=replace(setting.links, latency_s=latency))

    return change


def _ranks(value: str) -> Callable[[WhatIfJob], WhatIfJob]:
    ranks = int(_number(value, "ranks", whole=True))

    def change(setting: WhatIfJob) -> WhatIfJob:
        factors = setting.random.choice(setting.skew, max(ranks - setting.dataflow.ranks, 0))
        flow, links = rewrite.with_ranks(
            setting.dataflow, setting.links, ranks, factors.tolist(), setting.algorithm
        )
        return replace(setting, dataflow=flow, links=links)

    return change


def _accumulation(value: str) -> Callable[[WhatIfJob], WhatIfJob]:
    times = int(_number(value, "accumulation", whole=True))
    return lambda s: replace(s, dataflow=rewrite.accumulate_steps(s.dataflow, times))


def _bucket_mb(value: str) -> Callable[[WhatIfJob], WhatIfJob]:
    given = _number(value, "bucket_mb", least=0.0) * MIB
    size = None if given == DDP_BUCKET_BYTES else given
    return lambda s: replace(s, dataflow=rewrite.rebucket(s.dataflow, s.links, size, s.algorithm))


def _straggler(value: str) -> Callable[[WhatIfJob], WhatIfJob]:
    name, amount = _target(value, "straggler")
    rank, factor = int(_number(name, "straggler", least=-1.0, whole=True)), _factor(amount, "straggler")

    def change(setting: WhatIfJob) -> WhatIfJob:
        flow = setting.dataflow
        if rank >= flow.ranks:
            raise InputError(f"got the straggler {rank}; the job has ranks 0 to {flow.ranks - 1}")
        own = (flow.rank == rank) & ~np.isin(flow.kind, [KINDS.index(k) for k in ("communication", "wait")])
        return replace(setting, dataflow=_scaled(flow, own, factor))

    return change


def _scale(value: str) -> Callable[[WhatIfJob], WhatIfJob]:
    name, amount = _target(value, "scale")
    factor = _factor(amount, "scale")

    def change(setting: WhatIfJob) -> WhatIfJob:
        flow = setting.dataflow
        named = np.array([n == name for n in flow.names])
        chosen = flow.kind == KINDS.index(name) if name in KINDS else named
        if not chosen.any():
            known = sorted({KINDS[k] for k in flow.kind.tolist()} | set(flow.names))
            raise InputError(f"got the op {name!r}; the trace has {', '.join(known[:40])}")
        return replace(setting, dataflow=_scaled(flow, chosen, factor))

    return change


def _alone(
    word: str, edit: Callable[[Dataflow], Dataflow]
) -> Callable[[str], Callable[[WhatIfJob], WhatIfJob]]:
    """A change that takes no value."""

    def change(value: str) -> Callable[[WhatIfJob], WhatIfJob]:
        if value:
            raise InputError(f"got {word}={value}; expected {word} alone")
        return lambda s: replace(s, dataflow=edit(s.dataflow))

    return change


def _algorithm(value: str) -> Callable[[WhatIfJob], WhatIfJob]:
    name, _, count = value.partition(":")
    if name not in ALGORITHMS:
        raise InputError(f"got the algorithm {name!r}; expected one of {', '.join(ALGORITHMS)}")
    servers = int(_number(count or "1", "algorithm", whole=True))
    return lambda s: replace(
        s,
        algorithm=name,
        servers=servers,
        dataflow=rewrite.with_algorithm(s.dataflow, name, servers=servers),
    )


def _codec(value: str, codecs: Mapping[str, CodecEffect]) -> Callable[[WhatIfJob], WhatIfJob]:
    if value in codecs:
        effect = codecs[value]
    elif value.count(":") == 2:
        effect = CodecEffect(*(_number(v, "codec", least=0.0, strictly=False) for v in value.split(":")))
    else:
        known = ", ".join(sorted(codecs)) or "none"
        raise InputError(
            f"got the codec {value!r}; measured codecs: {known}; or give ratio:encode:decode, the last two in "
            "seconds a byte, such as 0.25:1e-9:1e-9"
        )
    return lambda s: replace(s, dataflow=rewrite.with_codec(s.dataflow, *effect))


_WORDS: dict[str, Callable[[str], Callable[[WhatIfJob], WhatIfJob]]] = {
    "accumulation": _accumulation,
    "algorithm": _algorithm,
    "balanced": _alone("balanced", rewrite.balance_compute),
    "bandwidth": _bandwidth,
    "bucket_mb": _bucket_mb,
    "latency": _latency,
    "no_communication": _alone("no_communication", rewrite.remove_communication),
    "ranks": _ranks,
    "scale": _scale,
    "straggler": _straggler,
}


def _scaled(flow: Dataflow, chosen: np.ndarray, factor: float) -> Dataflow:
    by = np.where(chosen, factor, 1.0)
    flows = np.repeat(by, np.diff(flow.flow_indptr))
    return replace(flow, duration_s=flow.duration_s * by, flow_bytes=flow.flow_bytes * flows)


def _target(value: str, word: str) -> tuple[str, str]:
    """Words before and behind the last colon; without one, all hosts and the whole."""
    before, colon, after = value.rpartition(":")
    if not value or (colon and not before) or (word in ("straggler", "scale") and not colon):
        raise InputError(f"got {word}={value}; expected {word}=WHICH:VALUE")
    return before or "*", after


def _host(name: str, setting: WhatIfJob) -> int | None:
    if name == "*":
        return None
    if not name.isdigit() or int(name) >= setting.links.hosts:
        raise InputError(f"got the host {name!r}; expected * or 0 to {setting.links.hosts - 1}")
    return int(name)


def _factor(text: str, word: str) -> float:
    if not text.startswith("x"):
        raise InputError(f"got {word} by {text!r}; expected a factor such as x1.5")
    return _number(text[1:], word, least=0.0, strictly=False)


def _number(text: str, word: str, *, least: float = 0.0, strictly: bool = True, whole: bool = False) -> float:
    try:
        value = float(text)
    except ValueError:
        value = np.nan
    fits = value > least if strictly else value >= least
    if not (fits and np.isfinite(value)) or (whole and value != int(value)):
        kind = "a whole number" if whole else "a number"
        raise InputError(
            f"got {word} {text!r}; expected {kind} {'above' if strictly else 'of at least'} {least:g}"
        )
    return value
