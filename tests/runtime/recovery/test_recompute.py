"""A stage that is lost is recomputed from what the others sent it: weights are those of a training without faults."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from tests.harness.threads import _group, run_ranks_as_threads
from tests.harness.tiers import keep
from tests.runtime.pipeline.examples import batches, chain, loss, plan_for, unet
from wirewise.errors import InputError, PeerError
from wirewise.plans import StagePlan
from wirewise.plans.timetables import StagePass
from wirewise.runtime.pipeline import LayerGraph, Pipeline
from wirewise.runtime.recovery.logs import SenderLog
from wirewise.runtime.recovery.recompute import RecoveryJournal
from wirewise.runtime.transport import Transport

UPDATES, CHECKPOINT = 7, 2


def adamw(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=0.01, weight_decay=0.1)


class _Killed(Exception):
    """Stands for the end of a process."""


class _Rank:
    """A rank whose training can be interrupted at a pass, and that goes on in another generation."""

    def __init__(self, rank: int, plan: StagePlan, folder: Path, store: Any) -> None:
        self.rank, self.plan, self.folder, self.store = rank, plan, folder, store
        self.checkpoint: Any = None
        self.refused = ""
        self.stops: StagePass | None = None

    def start(self, layers: Any, generation: int) -> None:
        self.log = SenderLog(self.folder, self.rank, chunk_steps=2)
        self.journal = RecoveryJournal(self.log, [self.folder], self.store, generation=generation)
        self.pipeline = Pipeline(
            layers, self.plan, loss=loss, optimizer=adamw, process_group=self.transport(generation), seed=3,
            journal=self.journal, around=self.around,
        )  # fmt: skip

    def die(self) -> None:
        """Leave what a process leaves that is killed: its log, and receives that nobody serves."""
        self.pipeline._values.close(lost=True)
        self.pipeline._updates.close()

    @contextmanager
    def around(self, step: StagePass) -> Iterator[None]:
        if step == self.stops:
            raise _Killed
        yield

    def transport(self, generation: int) -> Transport:
        store = dist.PrefixStore(f"g{generation}", self.store)
        return Transport(_group(store, self.rank, self.plan.world_size, 20.0), timeout_s=20.0)

    def train(self, until: int) -> None:
        """Train with the batches from the pipeline's update to `until`."""
        for one in self.pipeline.train(batches(UPDATES, self.plan)[self.pipeline.update : until]):
            if one.update + 1 == CHECKPOINT and self.checkpoint is None:
                self.checkpoint = copy.deepcopy(self.pipeline.state_dict())
                self.journal.checkpointed(CHECKPOINT)


def weights_of(ranks: list[_Rank]) -> list[dict[str, torch.Tensor]]:
    return [
        {"update": torch.tensor(one.pipeline.update)}
        | {n: p.detach().clone() for n, p in one.pipeline.weights.named.items()}
        | {
            f"{n}.{key}": value.clone() if isinstance(value, torch.Tensor) else torch.tensor(value)
            for optimizer in one.pipeline._updates._optimizers
            for n, p in one.pipeline.weights.named.items()
            for key, value in optimizer.state[p].items()
        }
        for one in ranks
    ]


def finished(ranks: list[_Rank]) -> list[dict[str, torch.Tensor]]:
    found = weights_of(ranks)
    for one in ranks:
        one.pipeline.close()
        one.log.close(remove=True)
    return found


def undisturbed(build: Any, plan: StagePlan, folder: Path) -> list[dict[str, torch.Tensor]]:
    # Threads share torch's generator, so models are made before they start.
    built = [build() for _ in range(plan.world_size)]

    def body(rank: int, group: Any, store: Any) -> _Rank:
        own = _Rank(rank, plan, folder, store)
        own.start(built[rank], 1)
        own.train(UPDATES)
        return own

    return finished(run_ranks_as_threads(plan.world_size, body))


def recovered(
    build: Any, plan: StagePlan, folder: Path, dead: set[int], stops: dict[int, StagePass], before: Any = None
) -> list[_Rank]:
    """Ranks of a training in which some are lost after update 4, or in the pass that `stops` has for them."""
    built = [[build() for _ in range(plan.world_size)] for _ in range(2)]

    def body(rank: int, group: Any, store: Any) -> _Rank:
        own = _Rank(rank, plan, folder, store)
        own.start(built[0][rank], 1)
        own.stops = stops.get(rank)
        if own.stops is None:
            own.train(max((one.update for one in stops.values()), default=4) + 1)
        else:
            with pytest.raises(_Killed):
                own.train(UPDATES)
        own.stops = None
        if rank in dead:
            own.die()
            own.start(built[1][rank], 2)
            own.pipeline.load_state_dict(own.checkpoint)
        else:
            own.journal.generation = 2
            done = own.pipeline.weights.newest
            own.pipeline.reconnect(own.transport(2))
            assert own.pipeline.update >= done
        if before is not None:
            before(own)
        try:
            own.train(UPDATES)
        except InputError as error:
            own.refused = str(error)
        return own

    return run_ranks_as_threads(plan.world_size, body)


def equal(found: list[dict[str, torch.Tensor]], expected: list[dict[str, torch.Tensor]]) -> bool:
    return all(
        one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)
        for one, other in zip(found, expected, strict=True)
    )


DEAD = [{0}, {1}, {2}, {0, 1}, {0, 2}, {0, 1, 2}]


@pytest.mark.sweep(keep=1)
@pytest.mark.parametrize(
    ("style", "dead"),
    keep([("1f1b", {1}), ("2bw", {0, 1})], [(style, dead) for style in ("1f1b", "2bw") for dead in DEAD]),
)
@pytest.mark.sample(4)
def test_lost_stages_are_recomputed_bit_by_bit(style: str, dead: set[int], tmp_path: Path) -> None:
    plan = plan_for(chain(), 3, style=style, microbatches=3)
    expected = undisturbed(chain, plan, tmp_path)
    assert equal(finished(recovered(chain, plan, tmp_path, dead, {})), expected)


@pytest.mark.sweep(keep=1)
@pytest.mark.parametrize(
    ("build", "style", "dead"),
    keep(
        [(unet, "1f1b", {1}), (unet, "2bw", {2})],
        [(unet, style, dead) for style in ("1f1b", "2bw", "eager-split") for dead in DEAD],
    ),
)
@pytest.mark.sample(6)
def test_ranks_that_are_an_update_ahead_or_in_the_middle_of_one_never_go_back(
    build: Any, style: str, dead: set[int], tmp_path: Path
) -> None:
    """The last stage has done an update that the others are in the middle of; skips go over a stage."""
    plan = plan_for(build(), 3, style=style, microbatches=3)
    expected = undisturbed(build, plan, tmp_path)
    kind: Any = "I" if style == "eager-split" else "B"
    stops = {0: StagePass(5, kind, 0, 1), 1: StagePass(5, kind, 1, 2)}
    assert equal(finished(recovered(build, plan, tmp_path, dead, stops)), expected)


def test_a_log_that_lacks_a_message_is_refused_by_all_ranks(tmp_path: Path) -> None:
    plan = plan_for(chain(), 2, style="1f1b", microbatches=2)

    def spoil(own: _Rank) -> None:
        if own.rank == 0:
            segment = sorted(tmp_path.rglob("rank-0/to-rank-1/*.log"))[-1]
            content = bytearray(segment.read_bytes())
            content[300] ^= 1
            segment.write_bytes(content)

    ranks = recovered(chain, plan, tmp_path, {1}, {}, spoil)
    assert (
        "ranks [1] cannot be recomputed; their messages say why: go back to a checkpoint" in ranks[0].refused
    )
    assert (
        "rank 1 cannot be recomputed from update 2: the log of rank 0 has whole updates 5 to 4"
        in ranks[1].refused
    )
    finished(ranks)


def test_messages_of_updates_below_a_durable_checkpoint_are_deleted(tmp_path: Path) -> None:
    plan = plan_for(chain(), 2, style="1f1b", microbatches=2)
    built = [chain() for _ in range(2)]

    def body(rank: int, group: Any, store: Any) -> tuple[_Rank, int, int]:
        own = _Rank(rank, plan, tmp_path, store)
        own.start(built[rank], 1)
        own.train(4)
        if rank == 0:
            own.journal.checkpointed(4)
        own.pipeline.transport.barrier("the test")
        kept = own.log.size_bytes
        own.pipeline.transport.barrier("the test")
        if rank == 1:
            own.journal.checkpointed(4)
        own.pipeline.transport.barrier("the test")
        own.train(5)
        return own, kept, own.log.size_bytes

    ranks = run_ranks_as_threads(2, body)
    for own, kept, left in ranks:
        # From update 2 on while one rank's checkpoint of 4 is not durable; with both, update 4 alone is left.
        assert kept == 2 * left > 0
        own.pipeline.close()
        own.log.close(remove=True)


def test_ranks_that_wait_in_vain_name_those_that_do_not_catch_up() -> None:
    journal = RecoveryJournal(_NoLog(), [], dist.HashStore())  # type: ignore[arg-type]
    journal._done, journal._timeout_s = [2, 5, 5], 0.05
    with pytest.raises(PeerError, match=r"rank 1 waited for ranks \[0\] to catch up with update 5"):
        journal.meet(5)
    journal._interrupted = lambda: True
    with pytest.raises(PeerError, match="a rank is lost"):
        journal.meet(5)


class _NoLog:
    rank = 1


def test_running_means_are_refused(tmp_path: Path) -> None:
    layers = LayerGraph([nn.Linear(6, 6), nn.BatchNorm1d(6)])
    plan = plan_for(layers, 1, style="1f1b", microbatches=2)

    def body(rank: int, group: Any, store: Any) -> None:
        log = SenderLog(tmp_path, 0)
        journal = RecoveryJournal(log, [tmp_path], store)
        with pytest.raises(InputError, match="module '1' keeps running means, which are not recomputed"):
            Pipeline(
                layers, plan, loss=loss, optimizer=adamw, process_group=group, store=store, journal=journal
            )
        log.close()

    run_ranks_as_threads(1, body)
