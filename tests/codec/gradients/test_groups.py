"""Groups may change: numerics, residuals and checkpoints do not; and defects that other codecs had stay out."""

import pytest
import torch

from tests.codec.gradients.groups import (
    FEEDBACK,
    OPTIONS,
    TENSORS,
    codec_of,
    decode,
    encode,
    memory_of,
    normal,
    rest_of,
    sent,
    whole,
)
from wirewise.codec.gradients import Residuals, Segments

RANKS = 3
PLANS = {1: [5], 2: [3, 2], 5: [1, 1, 1, 1, 1]}


def groups_of(plan):
    names, start = list(TENSORS), 0
    for count in plan:
        yield range(start, start + count), names[start : start + count]
        start += count


class Training:
    """Ranks that pull the parameters to points of their own, with noise, in one process."""

    def __init__(self, name, block=None):
        self.codec, self.block = codec_of(name), block
        self.total = sum(TENSORS.values())
        self.parameters = normal(self.total, 1)
        buffers = len(self.codec.memories)
        self.pools = [Residuals(TENSORS, buffers=buffers) if buffers else None for _ in range(RANKS)]

    def gradient(self, rank, step):
        target = normal(self.total, 100 + rank)
        return self.parameters - target + 0.1 * normal(self.total, 1000 + RANKS * step + rank)

    def step(self, step, plan):
        """Returns the mean of the gradients, and the mean of what was sent."""
        gradients, update = [self.gradient(r, step) for r in range(RANKS)], torch.zeros(self.total)
        start = 0
        for ids, names in groups_of(plan):
            segments = Segments([TENSORS[n] for n in names], ids=ids, block=self.block)
            part = slice(start, start + segments.total)
            memories = [pool and pool.group(names) for pool in self.pools]
            payloads = [
                encode(self.codec, gradients[r][part], segments, memories[r], step=step, rank=r)
                for r in range(RANKS)
            ]
            self.codec.decode_sum(payloads, segments, update[part], scale=1 / RANKS, step=step)
            start = part.stop
        self.parameters -= 0.05 * update
        return torch.stack(gradients).mean(dim=0), update


@pytest.mark.sweep
@pytest.mark.parametrize("block", [None, 64])
@pytest.mark.parametrize("name", OPTIONS)
def test_a6_parameters_do_not_depend_on_the_plan(name, block):
    results = []
    for plan in PLANS.values():
        training = Training(name, block)
        for step in range(20):
            training.step(step, plan)
        results.append(training.parameters)
    # Not only to 1e-6: no bit depends on the plan.
    assert all(torch.equal(results[0], other) for other in results[1:])


@pytest.mark.sweep
@pytest.mark.parametrize(
    "name", ["efsign", "topk", "onebit", "fp16", "randomk", "dgc", "int8", "int4", "powersgd"]
)
def test_a5_nothing_is_lost_while_plans_change(name):
    training, plans = Training(name), list(PLANS.values())
    given, delivered = torch.zeros(2, training.total, dtype=torch.float64)
    for step in range(200):
        gradient, update = training.step(step, plans[step // 10 % len(plans)])
        given += gradient
        delivered += update
    left = torch.stack([rest_of(pool.flat) for pool in training.pools]).double().mean(dim=0)
    assert (delivered + left - given).norm() <= 1e-5 * given.norm()


def test_a7_the_sum_is_written_into_the_pool_that_was_given():
    pool = torch.zeros(3, 100)
    v = normal(100)
    codec = codec_of("efsign")
    codec.decode_sum([encode(codec, v)], whole(v), pool[1])
    assert pool[1].all() and not pool[0].any() and not pool[2].any()


@pytest.mark.parametrize("name", FEEDBACK)
def test_a7_the_residual_does_not_fade(name):
    codec = codec_of(name)
    memory = memory_of(codec, 64)
    total = torch.zeros(64, dtype=torch.float64)
    for step in range(30):
        gradient = normal(64, 5) if step == 0 else torch.zeros(64)
        total += sent(codec, gradient, memory=memory, step=step)
    torch.testing.assert_close(
        total + rest_of(memory), normal(64, 5).double(), rtol=0.0, atol=1e-5 * float(total.abs().max() + 1)
    )


@pytest.mark.parametrize(("name", "size"), [("topk", 1000), ("dgc", 1000), ("dgc", 20_000)])
def test_a7_too_few_large_elements_are_not_made_up(name, size):
    v, wanted = torch.zeros(size), size // 100
    v[[3, 500]] = 1.0
    payload = encode(codec_of(name), v)
    indices = payload[: 4 * wanted].view(torch.int32).tolist()
    # Two that are not zero and the first zeros, each once, the same in every run.
    assert indices == [*range(wanted - 1), 500]


@pytest.mark.parametrize("name", ["fp16", "bf16", "randomk"])
def test_a7_payloads_of_linear_codecs_can_be_added_on_the_way(name):
    codec = codec_of(name)
    assert codec.linear
    # Small whole numbers, so that sums in 16 bits are exact.
    gradients = [(8 * normal(333, r)).round() for r in range(4)]
    payloads = [encode(codec, g) for g in gradients]
    summed = torch.stack([p.view(codec.wire_dtype) for p in payloads]).sum(dim=0, dtype=codec.wire_dtype)
    by_all_reduce = decode(codec, [summed.view(torch.uint8)], whole(gradients[0]))
    assert torch.equal(by_all_reduce, decode(codec, payloads, whole(gradients[0])))
    assert not codec_of("efsign").linear
