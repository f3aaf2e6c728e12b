import pytest

from wirewise.plans.splits import PIECE_BLOCK, pieces, splits_of


@pytest.mark.parametrize("most", [1, 4_096, 10_000, 1 << 20])
def test_size_alone_decides_on_pieces(most):
    sizes = {"small": 10, "even": 3 * 4_096, "odd": 100_001, "giant": 102_760_448 >> 4}
    splits = splits_of(sizes, most)
    for name, size in sizes.items():
        alone = splits_of({name: size}, most)
        assert alone.get(name) == splits.get(name)
        if name not in splits:
            assert size <= max(most, PIECE_BLOCK)
            continue
        found = list(pieces(name, size, splits[name]).values())
        assert [begin for begin, _ in found] == [0, *(end for _, end in found[:-1])] and found[-1][1] == size
        assert splits[name] % PIECE_BLOCK == 0 and len(found) >= 2
        assert splits[name] < most + PIECE_BLOCK
