"""Random numbers of batches are functions of their place, whichever process or worker draws them."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, default_collate, get_worker_info

from wirewise.runtime.recovery.batches import TrainingBatches
from wirewise.runtime.recovery.seeded import seed_all


class Augmented(Dataset):
    """Samples with a draw of each generator, global and held."""

    def __init__(self) -> None:
        self.held = np.random.default_rng(5)
        self.nested = {"transforms": [random.Random(1), np.random.RandomState(2)]}
        self.start = "none"

    def __len__(self) -> int:
        return 22

    def __getitem__(self, index: int) -> list[float]:
        transform, state = self.nested["transforms"]
        return [
            float(index),
            float(torch.rand(())),
            float(np.random.rand()),  # noqa: NPY002
            random.random(),
            float(self.held.random()),
            transform.random(),
            float(state.rand()),
            float(self.start == "started"),
        ]


def noisy(samples: list[Any]) -> Any:
    batch = default_collate([torch.tensor(sample) for sample in samples])
    return batch + torch.rand(()) * (torch.arange(8) == 1)


def start(number: int) -> None:
    info: Any = get_worker_info()
    info.dataset.start = "started"
    np.random.seed(number)  # noqa: NPY002


def batches(**options: Any) -> TrainingBatches:
    return TrainingBatches(DataLoader(Augmented(), 2, shuffle=True, collate_fn=noisy, **options), 2, seed=3)


def drawn(source: TrainingBatches, steps: range) -> list[list[list[float]]]:
    return [source.draw(step, 1, range(1, 2))[:, :7].tolist() for step in steps]


def test_any_batch_is_drawn_again_alike_from_anywhere() -> None:
    source = batches()
    whole = drawn(source, range(12))
    assert len({tuple(sample[1:]) for batch in whole for sample in batch}) == 22
    for step in (11, 2, 3, 3, 0):
        torch.rand(3)
        assert drawn(source, range(step, step + 1)) == whole[step : step + 1]
    assert drawn(batches(), range(4, 7)) == whole[4:7]


@pytest.mark.parametrize("persistent", [False, True])
def test_workers_draw_what_the_process_itself_draws(persistent: bool) -> None:
    whole = drawn(batches(), range(12))
    source = batches(
        num_workers=2, persistent_workers=persistent, prefetch_factor=3, worker_init_fn=start, timeout=30
    )
    assert drawn(source, range(8)) == whole[:8]
    # An iterator that begins elsewhere gives each batch to another worker.
    assert drawn(source, range(3, 12)) == whole[3:]
    assert source.draw(4, 1, range(1, 2))[:, 7].tolist() == [1.0, 1.0]
    source.close()


def test_workers_that_persist_live_through_epochs() -> None:
    source = batches(num_workers=1, persistent_workers=True)
    drawn(source, range(1))
    first = source._iterator
    drawn(source, range(1, 12))
    assert source._iterator is first
    assert first._persistent_workers  # type: ignore[union-attr]
    del first
    source.close()


def test_a_function_draws_alike_too() -> None:
    source = TrainingBatches(lambda step, share: torch.rand(2), 2, seed=0)
    first = source.draw(4, 1, range(1, 2))
    torch.rand(5)
    assert torch.equal(source.draw(4, 1, range(1, 2)), first)


def test_random_numbers_depend_on_seed_step_share_and_stream_alone() -> None:
    def values(*place: int) -> tuple[float, float, float]:
        seed_all(*place)
        return float(torch.rand(())), float(np.random.rand()), random.random()  # noqa: NPY002

    first = values(1, 2, 3)
    torch.rand(5)
    assert values(1, 2, 3) == first
    assert len({values(*place) for place in ((1, 2, 3), (2, 2, 3), (1, 3, 3), (1, 2, 4), (1, 2, 3, 1))}) == 5
