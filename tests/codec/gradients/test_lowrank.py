"""PowerSGD: two rounds, exact at low rank, and factors that live on."""

import pytest
import torch

from tests.codec.gradients.groups import codec_of, decode, encode, normal
from wirewise.codec.gradients import Segments

SHAPES = [(40, 30), (17,), (8, 3, 5, 5), (1, 50)]
SEGMENTS = Segments([1200, 17, 600, 50], ids=[5, 6, 7, 8], shapes=SHAPES)


def memories(codec, ranks):
    return [torch.zeros(len(codec.memories), SEGMENTS.total) for _ in range(ranks)]


def exchange(codec, gradients, kept, step=0):
    """Both rounds by all-reduces; what each rank decodes."""
    ranks = range(len(gradients))
    payloads = [torch.empty(codec.size_bytes(SEGMENTS), dtype=torch.uint8) for _ in ranks]
    for r in ranks:
        codec.encode(gradients[r], kept[r], SEGMENTS, payloads[r], step=step, rank=r)
    for number, part in enumerate(codec.parts(SEGMENTS)):
        total = torch.stack([payload[part].view(codec.wire_dtype) for payload in payloads]).sum(dim=0)
        for r in ranks:
            payloads[r][part] = total.view(torch.uint8)
            codec.advance(number, payloads[r], gradients[r], kept[r], SEGMENTS)
    return [decode(codec, [payload], SEGMENTS, scale=1 / len(gradients)) for payload in payloads]


def low_rank(rank, seed):
    parts = [normal(m * rank, seed + i).view(m, rank) @ normal(rank * n, seed + 9 + i).view(rank, n)
             for i, (m, n) in enumerate([(40, 30), (8, 75)])]  # fmt: skip
    return torch.cat([parts[0].flatten(), normal(17, seed), parts[1].flatten(), normal(50, seed)])


def test_a1_the_payload_is_that_of_the_factors():
    codec = codec_of("powersgd", rank=3)
    assert codec.size_bytes(SEGMENTS) == 4 * (3 * (40 + 30) + 17 + 3 * (8 + 75) + 50)
    first, second = codec.parts(SEGMENTS)
    assert (first.start, second.stop) == (0, codec.size_bytes(SEGMENTS)) and first.stop == second.start
    assert codec.rounds == 2
    assert codec_of("topk").parts(SEGMENTS) == (slice(0, 8 * (12 + 1 + 6 + 1)),)


@pytest.mark.parametrize("implementation", ["numba", "torch"])
@pytest.mark.parametrize("rank", [1, 2, 4])
def test_matrices_of_low_rank_come_as_they_are(rank, implementation):
    codec, gradient = codec_of("powersgd", implementation, rank=4), low_rank(rank, 3)
    for kept in (torch.zeros(2, SEGMENTS.total), None):
        result = decode(codec, [encode(codec, gradient, SEGMENTS, kept)], SEGMENTS)
        torch.testing.assert_close(result, gradient, rtol=1e-4, atol=1e-4)
        assert kept is None or kept[0].norm() <= 1e-5 * gradient.norm()


def test_a4_all_ranks_decode_the_projected_mean_with_the_same_bits():
    codec, gradients = codec_of("powersgd", rank=2), [normal(SEGMENTS.total, r) for r in range(3)]
    kept = memories(codec, 3)
    results = exchange(codec, gradients, kept)
    assert all(torch.equal(results[0], other) for other in results)
    mean, rest = torch.stack(gradients).mean(dim=0), torch.stack([one[0] for one in kept]).mean(dim=0)
    torch.testing.assert_close(results[0] + rest, mean, rtol=1e-5, atol=1e-5)
    assert torch.equal(kept[0][1], kept[1][1]) and torch.equal(kept[0][1], kept[2][1])
    # A projection: what is sent and what stays are orthogonal.
    sent, left = results[0][:1200].double(), rest[:1200].double()
    assert abs(float(sent @ left)) <= 1e-5 * float(sent.norm() * left.norm())


def test_a5_nothing_is_lost_over_steps():
    codec, kept = codec_of("powersgd", rank=2), memories(codec_of("powersgd"), 2)
    given, delivered = torch.zeros(2, SEGMENTS.total, dtype=torch.float64)
    for step in range(50):
        gradients = [normal(SEGMENTS.total, 100 * step + r) for r in range(2)]
        delivered += exchange(codec, gradients, kept, step)[0]
        given += torch.stack(gradients).mean(dim=0)
    left = torch.stack([one[0] for one in kept]).double().mean(dim=0)
    assert (delivered + left - given).norm() <= 1e-5 * given.norm()


def test_the_factor_of_the_step_before_makes_the_next_one_better():
    codec, kept = codec_of("powersgd", rank=2), memories(codec_of("powersgd"), 1)[0]
    spectrum = torch.diag(0.8 ** torch.arange(30.0))
    left, right = (torch.linalg.qr(normal(n * 30, n).view(n, 30)).Q for n in (40, 30))
    gradient = torch.zeros(SEGMENTS.total)
    gradient[:1200] = (left @ spectrum @ right.T).flatten()
    errors = []
    for step in range(6):
        kept[0].zero_()
        result = decode(codec, [encode(codec, gradient, SEGMENTS, kept, step=step)], SEGMENTS)
        errors.append(float((result - gradient).norm()))
    best = float(spectrum.diagonal()[2:].norm())
    assert errors[0] > 1.05 * best and errors[-1] <= 1.02 * best


def test_zeros_and_tensors_that_were_zero_do_not_stay_so():
    codec, kept = codec_of("powersgd", rank=2), memories(codec_of("powersgd"), 1)[0]
    for gradient in (torch.zeros(SEGMENTS.total), low_rank(2, 5), low_rank(1, 7), low_rank(2, 8)):
        result = decode(codec, [encode(codec, gradient, SEGMENTS, kept)], SEGMENTS)
        # A factor that stayed 0 would lose a whole rank; one that starts from rounding errors, as after a matrix of
        # lower rank, loses digits, how many depends on the processor.
        assert (result - gradient).norm() <= 1e-3 * gradient.norm()


def test_random_starts_are_alike_on_all_ranks_and_differ_between_steps():
    codec, gradient = codec_of("powersgd", rank=1), normal(SEGMENTS.total)
    a, b, c = (encode(codec, gradient, SEGMENTS, rank=r, step=s) for r, s in ((0, 0), (1, 0), (0, 1)))
    assert torch.equal(a, b) and not torch.equal(a, c)


@pytest.mark.sweep
@pytest.mark.parametrize("rank", [1, 3, 4, 6])
@pytest.mark.parametrize(
    "sizes", [(2500, [(50, 50)]), (4097, None), (600 * 70, [(600, 70)]), (31 * 1030, [(31, 1030)])]
)
def test_implementations_agree_to_rounding(sizes, rank):
    size, shapes = sizes
    segments, gradient, found = Segments([size], shapes=shapes), normal(size), []
    for implementation in ("numba", "torch"):
        codec, kept = codec_of("powersgd", implementation, rank=rank), torch.zeros(2, size)
        payloads = [encode(codec, gradient, segments, kept, step=step) for step in range(3)]
        result = decode(codec, payloads, segments, scale=0.5)
        found.append((torch.stack(payloads).view(torch.float32), kept, result))
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5 * float(b.abs().max()))


@pytest.mark.parametrize("implementation", ["numba", "torch"])
@pytest.mark.parametrize("checked", [False, True])
def test_products_and_sums_beyond_float32_are_cut(implementation, checked):
    codec, gradient = codec_of("powersgd", implementation, rank=2), torch.full((SEGMENTS.total,), 3e38)
    kept = torch.zeros(2, SEGMENTS.total)
    kept[0] = gradient
    result = decode(codec, [encode(codec, gradient, SEGMENTS, kept, checked=checked)], SEGMENTS)
    assert result.isfinite().all() and kept.isfinite().all()


def test_a_payload_of_one_round_does_not_pass_for_a_whole_one():
    codec, gradient = codec_of("powersgd"), normal(SEGMENTS.total)
    payload = torch.zeros(codec.size_bytes(SEGMENTS), dtype=torch.uint8)
    codec.encode(gradient, None, SEGMENTS, payload)
    assert decode(codec, [payload], SEGMENTS)[:1200].isnan().all()
