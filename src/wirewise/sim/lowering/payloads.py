"""What travels between hosts in place of a bucket's gradients, by codec and scheme."""

from __future__ import annotations

from collections import Counter

from wirewise.collective.named import collective_flows
from wirewise.cost.gradients import WIRES, GradientCosts, wire_bytes
from wirewise.errors import PlanError
from wirewise.plans.fusion import Bucket
from wirewise.sim.data_parallel import Payload
from wirewise.trace.modules import ModuleTrace

__all__ = ["payload_of"]


def payload_of(
    bucket: Bucket, size_bytes: float, job: ModuleTrace, costs: GradientCosts | None
) -> Payload | None:
    """The payload of a chunk of so many bytes of float32 gradients; None: it is all-reduced as it is.

    Raises:
        PlanError: A codec whose seconds are not known, payloads that the scheme cannot carry, or hosts that it cannot
            divide; the message says which.
    """
    if bucket.way == "all_reduce":
        return None
    encode_s = decode_s = 0.0
    if bucket.codec != "none":
        encode_s, decode_s = _codec_s(bucket, size_bytes / 4.0, job, costs)
    ratio = costs.ratio if costs is not None else 0.01
    if bucket.scheme == "hierarchical":
        parts, rounds = _hierarchical(bucket, size_bytes, job, ratio)
        return Payload(parts, rounds, encode_s, decode_s, bucket.decode)
    sent = wire_bytes(bucket.codec, max(round(size_bytes / 4), 1), ratio=ratio)
    # Codes of shares go to their owners and back: as many bytes as a ring all-reduce of the codes sends.
    name = "all_gather" if bucket.scheme == "all_gather" else "all_reduce"
    algorithm = job.algorithm if bucket.scheme == "all_reduce" else "ring"
    flows, rounds = collective_flows(name, list(job.hosts), float(sent), algorithm)
    rounds *= 2 if WIRES[bucket.codec].rank else 1
    return Payload(tuple(flows), rounds, encode_s, decode_s, bucket.decode, name)


def _codec_s(
    bucket: Bucket, elements: float, job: ModuleTrace, costs: GradientCosts | None
) -> tuple[float, float]:
    """Seconds to encode a chunk, and to decode what comes of it."""
    wire = WIRES.get(bucket.codec)
    if wire is None or costs is None or bucket.codec not in costs.codecs:
        known = ", ".join(costs.codecs) if costs is not None else "none, as no costs are given"
        raise PlanError(
            f"seconds of codec {bucket.codec!r} are not known ({known}); give costs=GradientCosts(...) with its times"
        )
    if bucket.scheme == "all_reduce" and not wire.linear:
        raise PlanError(
            f"payloads of {bucket.codec!r} cannot be added up; expected scheme all_gather or divisible"
        )
    times = costs.codecs[bucket.codec]
    ranks, hosts = len(job.hosts), len(set(job.hosts))
    encode, share = times.encode_s(), 1.0 / ranks
    if bucket.scheme == "hierarchical":
        share = hosts / ranks
        return float(encode(elements * share)), float(times.decode_s(hosts)(elements * share))
    if bucket.scheme == "divisible":
        # A rank decodes the shares of all, encodes their sum, and decodes all sums.
        shares = float(times.decode_s(ranks)(elements * share))
        return float(encode(elements)), 2.0 * shares + float(encode(elements * share))
    return float(encode(elements)), float(
        times.decode_s(1 if bucket.scheme == "all_reduce" else ranks)(elements)
    )


def _hierarchical(
    bucket: Bucket, size_bytes: float, job: ModuleTrace, ratio: float
) -> tuple[tuple[tuple[int, int, float], ...], int]:
    """Sums within hosts as they are, shares between hosts compressed."""
    counts = Counter(job.hosts)
    each = set(counts.values())
    if len(each) != 1:
        raise PlanError(f"hosts have {sorted(each)} ranks; scheme 'hierarchical' expects as many on each")
    k, hosts = each.pop(), sorted(counts)
    inside = [(host, host, 2.0 * (k - 1) * size_bytes) for host in hosts if k > 1]
    if len(hosts) == 1:
        return tuple(inside), 2
    if bucket.codec == "none":
        between, rounds = 2.0 * (len(hosts) - 1) / len(hosts) * size_bytes, 2 * (len(hosts) - 1)
    else:
        share = wire_bytes(bucket.codec, max(round(size_bytes / 4 / k), 1), ratio=ratio)
        between, rounds = float(k * (len(hosts) - 1) * share), len(hosts) - 1
    ring = [(host, hosts[(i + 1) % len(hosts)], between) for i, host in enumerate(hosts)]
    return (*inside, *ring), rounds + 2 * (k > 1)
