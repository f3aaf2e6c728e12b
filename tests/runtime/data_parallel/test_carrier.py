"""Compressed groups of gradients: what comes is the mean of what was sent, and nothing is lost on the way."""

from __future__ import annotations

import itertools
import random
import time
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.harness.threads import run_ranks_as_threads
from tests.harness.tiers import slow
from tests.runtime.data_parallel.carried import NAMES, SIZES, WAYS, Counting, carried, gradient
from wirewise.codec.gradients import CODECS, Segments, make
from wirewise.errors import InputError, PeerError
from wirewise.runtime.data_parallel import Compression, GroupSender, Pools, resize
from wirewise.runtime.transport import Transport

LINEAR = [name for name in CODECS if make(name).linear]
WAYS += [(codec, "all_reduce") for codec in LINEAR] + [("none", "all_reduce"), ("none", "hierarchical")]
FED_BACK = ("none", "fp16", "topk", "efsign", "onebit", "randomk", "powersgd", "int4")
FEEDBACK = [way for way in WAYS if way[0] in FED_BACK]
# Sums of 16 bits are rounded to 16 bits, which no rank can see.
FEEDBACK.remove(("fp16", "all_reduce"))


@pytest.mark.parametrize("scheme", ["all_reduce", "all_gather", "divisible", "hierarchical"])
def test_all_ranks_hold_the_same_bits(scheme):
    ways = itertools.cycle(["inline", "lazy", "queue"])
    codecs = [(codec, next(ways)) for codec, found in WAYS if found == scheme]

    def body(carrier, rank):
        found = {}
        for codec, decode in codecs:
            flat = gradient(rank, 0)
            one = carrier.begin(NAMES, flat, codec=codec, scheme=scheme, decode=decode)
            carrier.finish([one])
            found[codec] = flat
            assert one.sent_bytes > 0 and set(one.spans) == {"encode", "communicate", "decode"}
        return found

    first, *others = carried(4, body, Compression(ranks_per_host=2))
    for other, (codec, _) in itertools.product(others, codecs):
        assert torch.equal(other[codec], first[codec]), codec
    assert all(flat.isfinite().all() and flat.any() for flat in first.values())


def random_ways(draw: random.Random) -> list[tuple[tuple[str, ...], str, str, str]]:
    """Groups in any order, each with a codec, a scheme and a place to decode."""
    names = list(NAMES)
    draw.shuffle(names)
    cuts = [0, *sorted(draw.sample(range(1, len(names)), draw.randint(0, 2))), len(names)]
    groups = [tuple(names[a:b]) for a, b in itertools.pairwise(cuts)]
    return [(g, *draw.choice(FEEDBACK), draw.choice(["inline", "lazy", "queue"])) for g in groups]


def in_order(flat: Tensor, names: tuple[str, ...]) -> Tensor:
    """Gradients of these parameters, taken from those of all."""
    parts = dict(zip(NAMES, flat.split(list(SIZES.values())), strict=True))
    return torch.cat([parts[name] for name in names])


@pytest.mark.slow
def test_nothing_is_lost_when_plans_change():
    """A5: what was sent and what waits add up to the gradients, over 200 steps and 20 plans."""
    steps, ranks = 200, 4

    def body(carrier, rank):
        draw, sent = random.Random(3), {name: torch.zeros(SIZES[name]).double() for name in NAMES}
        for step in range(steps):
            if step % 10 == 0:
                ways = random_ways(draw)
            travelling = []
            for names, codec, scheme, decode in ways:
                flat = in_order(gradient(rank, step), names)
                travelling.append(carrier.begin(names, flat, codec=codec, scheme=scheme, decode=decode))
            carrier.finish(travelling)
            for one in travelling:
                parts = one.flat.split([SIZES[name] for name in one.way.group.names])
                for name, part in zip(one.way.group.names, parts, strict=True):
                    sent[name] += part
        return sent, carrier.pools.state_dict()

    results = carried(ranks, body, Compression(ranks_per_host=2, options={"topk": {"ratio": 0.2}}))
    total = in_order(sum(gradient(r, s).double() for r in range(ranks) for s in range(steps)) / ranks, NAMES)
    waiting = resize([state for _, state in results], 1)["residual"]
    for sent, _ in results:
        found = torch.cat([sent[n] + waiting.get(n, torch.zeros(SIZES[n])).flatten() for n in NAMES])
        assert float((found - total).norm() / total.norm()) <= 1e-5


@pytest.mark.slow
@pytest.mark.parametrize(
    ("codec", "scheme"),
    [("efsign", "all_gather"), slow(("topk", "all_gather")), slow(("efsign", "divisible"))],
)
def test_residuals_do_not_grow(codec, scheme):
    """A5: over 1000 steps they stay within what the share that is sent allows."""

    def body(carrier, rank):
        norms = []
        for step in range(1000):
            flat = gradient(rank, step)
            carrier.finish([carrier.begin(NAMES, flat, codec=codec, scheme=scheme)])
            if step % 20 == 19:
                norms.append(float(carrier.pools.group("residual", NAMES).norm()))
        return norms

    for norms in carried(2, body, Compression(options={"topk": {"ratio": 0.1}})):
        assert max(norms[25:]) <= 1.3 * max(norms[:25])
        # Karimireddy et al., lemma 3: at most 2 sqrt(1 - delta) / delta of the largest gradient.
        largest, delta = 1.5 * sum(SIZES.values()) ** 0.5, 0.1 if codec == "topk" else 0.4
        assert max(norms) <= 2 * (1 - delta) ** 0.5 / delta * largest


@pytest.mark.parametrize(
    ("codec", "scheme", "calls"),
    [
        ("none", "all_reduce", ["allreduce"]),
        ("fp16", "all_reduce", ["allreduce"]),
        ("efsign", "all_gather", ["_allgather_base"]),
        ("topk", "divisible", ["alltoall_base", "_allgather_base"]),
    ],
)
def test_a_group_is_one_collective_and_its_bytes_are_the_payloads(codec, scheme, calls):
    """C5: two collectives where shares are summed up between them."""
    ranks, compression = 3, Compression()

    def rank_body(rank: int, group: Any, store: Any) -> Any:
        counting = Counting(group)
        transport = Transport(counting, timeout_s=20, store=store)  # type: ignore[arg-type]
        carrier = GroupSender(transport, Pools(SIZES), compression)
        one = carrier.begin(NAMES, gradient(rank, 0), codec=codec, scheme=scheme)
        one.wait()
        carrier.close()
        return counting.calls, one.sent_bytes

    payload = 4 * sum(SIZES.values())
    if codec != "none":
        payload = make(codec).size_bytes(Segments(list(SIZES.values())))
    share = {"all_reduce": 2 * (ranks - 1) / ranks, "all_gather": ranks - 1}.get(scheme)
    for found, sent in run_ranks_as_threads(ranks, rank_body):
        assert found == calls
        if share is not None:
            assert sent == int(share * payload) + (8 * (ranks - 1) if scheme == "all_gather" else 0)


def test_other_types_are_encoded_from_float32():
    def body(carrier, rank):
        flat = gradient(rank, 0).bfloat16()
        carrier.begin(NAMES, flat, codec="bf16", scheme="all_gather").wait()
        return flat

    mean = sum(gradient(rank, 0).bfloat16().float() for rank in range(2)) / 2
    for flat in carried(2, body, Compression()):
        assert flat.dtype == torch.bfloat16
        torch.testing.assert_close(flat, mean.bfloat16())


def test_a_slow_rank_holds_nobody_up_for_good():
    """B5: others wait for it, and all hold the same bits."""

    def body(carrier, rank):
        travelling = []
        for number, name in enumerate(NAMES):
            time.sleep(0.2 * (rank == number % 3))
            flat = in_order(gradient(rank, 0), (name,))
            travelling.append(
                carrier.begin((name,), flat, codec="efsign", scheme="divisible", decode="queue")
            )
        carrier.finish(travelling)
        return torch.cat([one.flat for one in travelling])

    first, *others = carried(3, body, Compression())
    assert all(torch.equal(first, other) for other in others)


@pytest.mark.slow
def test_a_silent_rank_is_named_and_what_follows_does_not_wait_again():
    def body(carrier, rank):
        if rank == 1:
            time.sleep(2.5)
            return ""
        travelling = [
            carrier.begin((n,), in_order(gradient(rank, 0), (n,)), codec="efsign", scheme="all_gather")
            for n in NAMES
        ]
        with pytest.raises(PeerError) as caught:
            carrier.finish(travelling)
        # One group waited for its second; the others were given up at once.
        assert sum("communicate" in one.spans for one in travelling) == 0
        assert all(one.future.exception() is caught.value for one in travelling)
        return str(caught.value)

    results = carried(2, body, Compression(), timeout_s=1.0)
    assert "rank 0 waited in the all-gather of the gradients from 'a' on: rank 1" in results[0]


def test_a_codec_must_fit_the_scheme():
    def body(carrier, rank):
        for codec, scheme in (("efsign", "all_reduce"), ("none", "broadcast")):
            with pytest.raises(InputError, match=f"codec '{codec}' cannot travel by '{scheme}'"):
                carrier.begin(NAMES, gradient(rank, 0), codec=codec, scheme=scheme)
        return True

    assert carried(1, body, Compression()) == [True]
