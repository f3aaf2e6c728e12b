"""How seeds are divided over batches and ranks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from wirewise.errors import InputError
from wirewise.integrations.pyg.sampled_loader import piece_offsets


@given(st.integers(1, 300), st.integers(1, 20), st.integers(1, 6), st.booleans())
@example(29, 7, 4, False)
def test_every_rank_has_seeds_in_each_batch_and_none_is_lost(
    total: int, batch_size: int, ranks: int, drop_last: bool
) -> None:
    all_ranks = batch_size * ranks
    try:
        offsets = piece_offsets(total, batch_size, ranks, drop_last=drop_last)
    except InputError:
        # Too few for a batch, or for every rank in the last one where batches have a seed each.
        left = total % all_ranks
        assert total < all_ranks if drop_last else 0 < left < ranks and (total < ranks or batch_size == 1)
        return
    pieces = np.diff(offsets).reshape(-1, ranks)
    assert offsets[0] == 0
    assert offsets[-1] == (total - total % all_ranks if drop_last else total)
    assert len(pieces) == (total // all_ranks if drop_last else -(-total // all_ranks))
    assert pieces.min() >= 1 and pieces.max() <= batch_size
    assert np.ptp(pieces, axis=1).max() <= 1
    assert (pieces[:-2] == batch_size).all()
    if drop_last:
        assert (pieces == batch_size).all()


def test_one_rank_has_full_batches_and_what_is_left() -> None:
    assert piece_offsets(10, 4, 1).tolist() == [0, 4, 8, 10]


def test_a_last_batch_with_fewer_seeds_than_ranks_takes_some_of_the_one_before() -> None:
    assert np.diff(piece_offsets(17, 4, 4)).reshape(-1, 4).tolist() == [[4, 3, 3, 3], [1, 1, 1, 1]]


@pytest.mark.parametrize(
    ("numbers", "drop_last", "message"),
    [
        ((3, 8, 4), False, "leave one of 4 ranks without seeds in the last batch"),
        ((7, 1, 2), False, "larger batch_size with enough seeds, or drop_last=True"),
        ((7, 4, 2), True, "7 seeds do not fill a batch of 4 on 2 ranks"),
    ],
)
def test_too_few_seeds_are_refused(numbers: tuple[int, int, int], drop_last: bool, message: str) -> None:
    with pytest.raises(InputError, match=message):
        piece_offsets(*numbers, drop_last=drop_last)
