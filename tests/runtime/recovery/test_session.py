"""Trainings that ranks die in, bit for bit as nobody had."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tests.runtime.recovery import script_job
from tests.runtime.recovery.trained import alone, outcomes, run
from wirewise.errors import InputError, PeerError
from wirewise.runtime.recovery import DDP, Backward, Ranks, State, protect


def fault(
    rank: int, point: str, step: int | None, index: int | None = None, act: str = "kill"
) -> dict[str, Any]:
    return {"act": act, "rank": rank, "point": point, "step": step, "index": index}


@pytest.mark.dist
def test_a_killed_rank_is_replaced_and_the_training_is_the_undisturbed_one(tmp_path):
    recoveries, digests = run(tmp_path, {"steps": 12}, [fault(1, "bucket", 5, index=1)])
    assert digests == [alone({"steps": 12}, 2)] * 2
    (recovery,) = recoveries.recoveries
    assert recovery.ranks == (1,) and recovery.causes == ("killed by SIGKILL",)
    assert (recovery.step, recovery.strategy, recovery.lost_iterations) == (5, "replica", 0)
    times = ("seen_s", "noticed_s", "regrouped_s", "decided_s", "restored_s", "resumed_s", "committed_s")
    found = [getattr(recovery, name) for name in times]
    assert found == sorted(found) and found[0] > 0


EVERYWHERE = [
    fault(1, "batch", 2),
    fault(0, "forward", 4),
    fault(2, "bucket", 6, index=0),
    fault(1, "bucket", 8, index=1),
    fault(3, "reduced", 10),
    fault(0, "update", 12),
    fault(2, "commit", 14),
    fault(3, "committed", 16),
    # Two at once.
    fault(0, "bucket", 18, index=1),
    fault(1, "bucket", 18, index=1),
    # A rank dies, another in the recovery from that.
    fault(2, "bucket", 20, index=1),
    fault(3, "restore", 20),
    fault(0, "batch", 22),
    fault(1, "resume", 22),
    fault(2, "bucket", 24, index=0, act="stop"),
]


@pytest.mark.slow
@pytest.mark.dist
@pytest.mark.timeout(300)
def test_kills_at_every_point_of_a_step_and_of_a_recovery_change_no_bit(tmp_path):
    settings = {"steps": 28, "sleep_s": 0.02}
    (tmp_path / "calm").mkdir()
    _, expected = run(tmp_path / "calm", settings, ranks=4, spares=0)
    (tmp_path / "killed").mkdir()
    recoveries, digests = run(tmp_path / "killed", settings, EVERYWHERE, ranks=4, spares=3, silence_s=3.0)
    assert len({*expected, *digests}) == 1
    assert all(one.lost_iterations == 0 for one in recoveries.recoveries)
    assert sum(len(one.ranks) for one in recoveries.recoveries) == len(EVERYWHERE)


@pytest.mark.slow
@pytest.mark.dist
def test_a_rank_that_dies_while_the_new_group_connects_is_outlived(tmp_path):
    # Nothing interrupts those that connect to it; others come to the next group at once, and wait for them.
    faults = [fault(1, "bucket", 4, index=1), fault(2, "connect", 4)]
    (tmp_path / "calm").mkdir()
    _, expected = run(tmp_path / "calm", {"steps": 8}, ranks=3, spares=0)
    (tmp_path / "killed").mkdir()
    recoveries, digests = run(tmp_path / "killed", {"steps": 8}, faults, ranks=3, spares=2)
    assert digests == expected
    assert [one.ranks for one in recoveries.recoveries] == [(1,), (2,)]


@pytest.mark.slow
@pytest.mark.dist
def test_distributed_data_parallel_goes_on_around_a_new_group(tmp_path):
    settings = {"steps": 12, "sync": "ddp"}
    faults = [fault(1, "forward", 3), fault(0, "commit", 6)]
    _, digests = run(tmp_path, settings, faults, spares=2)
    assert digests == [alone(settings, 2)] * 2


@pytest.mark.slow
@pytest.mark.dist
def test_updates_within_backpropagation_that_a_kill_cut_short_leave_no_trace(tmp_path):
    settings = {"steps": 14, "sync": "backward", "consistency": "ping-pong"}
    # The first bucket is updated, the second is not; between two updates; all are, and nothing is committed.
    faults = [fault(1, "bucket", 3, index=1), fault(0, "update", 6), fault(1, "commit", 9)]
    recoveries, digests = run(tmp_path, settings, faults, spares=3)
    assert digests == [alone(settings, 2)] * 2
    assert all(one.lost_iterations == 0 for one in recoveries.recoveries)


@pytest.mark.slow
@pytest.mark.dist
def test_every_optimizer_comes_out_bit_equal(tmp_path):
    settings = {"steps": 10, "mixed": True}
    _, digests = run(tmp_path, settings, [fault(0, "bucket", 3, index=1), fault(1, "commit", 6)], spares=2)
    assert digests == [alone(settings, 2)] * 2


@pytest.mark.slow
@pytest.mark.dist
def test_fewer_ranks_keep_the_global_batch_and_folded_gradients_keep_every_bit(tmp_path):
    settings = {"steps": 40, "sync": "fold", "sleep_s": 0.1}
    faults = [fault(1, "batch", 3), fault(2, "forward", 5)]
    recoveries, digests = run(tmp_path, settings, faults, ranks=4, spares=0, elastic=True)
    assert len(set(digests)) == 1
    assert digests[0] == alone(settings, 4)
    # It shrank twice, and grew again as soon as processes were ready.
    shrunk = [one for one in recoveries.recoveries if one.ranks]
    grown = [one for one in recoveries.recoveries if not one.ranks]
    assert [one.ranks for one in shrunk] == [(1,), (2,)] and grown
    assert all(one.lost_iterations == 0 for one in recoveries.recoveries)


@pytest.mark.slow
@pytest.mark.dist
def test_codecs_refuse_an_agent_that_goes_on_with_fewer_ranks(tmp_path):
    with pytest.raises(PeerError, match=r"\(elastic=True\), and the plan's codecs remember"):
        run(tmp_path, {"steps": 4, "codec": "topk"}, elastic=True)


@pytest.mark.slow
@pytest.mark.dist
def test_what_codecs_remember_is_there_after_a_kill(tmp_path):
    settings = {"steps": 10, "codec": "topk"}
    kept = []
    for name, faults in (("calm", []), ("killed", [fault(1, "bucket", 4, index=1), fault(0, "update", 7)])):
        (tmp_path / name).mkdir()
        _, digests = run(tmp_path / name, settings, faults, spares=2 if faults else 0)
        kept.append((digests, [one["own"] for one in outcomes(tmp_path / name, 2)]))
    assert kept[0] == kept[1]
    assert len(set(kept[0][1])) == 2


@pytest.mark.slow
@pytest.mark.dist
def test_checkpoints_hold_where_all_replicas_are_lost(tmp_path):
    # The second one as soon as it notices: before that it may be anywhere. That of step 10 may still be written.
    both = [fault(0, "forward", 12), fault(1, "fault", None)]
    settings = {"steps": 15, "checkpoints": str(tmp_path / "checkpoints")}
    recoveries, digests = run(tmp_path, settings, both, spares=2)
    assert digests == [alone(settings, 2)] * 2
    last = recoveries.recoveries[-1]
    assert last.strategy == "checkpoint" and last.step in (5, 10)


@pytest.mark.slow
@pytest.mark.dist
def test_without_checkpoints_the_loss_of_all_replicas_is_named(tmp_path):
    both = [fault(0, "forward", 7), fault(1, "fault", None)]
    with pytest.raises(PeerError, match=r"all replicas of the state were lost, after step \d+ at least"):
        run(tmp_path, {"steps": 10}, both, spares=2)


PLACES = (
    "batch",
    "top",
    "forward",
    "computed",
    "reduced",
    "update",
    "commit",
    "committed",
    "past",
    "far past",
    "sealed",
)


def faults_everywhere(ranks: int, at_once: int) -> list[dict[str, Any]]:
    return [
        fault((number + other) % ranks, place, 3 * number + 2)
        for number, place in enumerate(PLACES)
        for other in range(at_once)
    ]


@pytest.mark.dist
def test_what_a_script_changes_outside_the_block_is_that_of_the_undisturbed_run(tmp_path):
    # Step 5 is followed by an evaluation of all ranks.
    faults = [fault(0, "computed", 2), fault(1, "past", 5), fault(1, "bucket", 8)]
    settings = {"steps": 10, "guarded": False}
    _, (calm, _) = script_job.run(tmp_path / "calm", settings)
    recoveries, killed = script_job.run(tmp_path / "killed", settings, faults, spares=3)
    assert len(recoveries.recoveries) == 3
    for one in killed:
        assert one["digest"] == calm["digest"] and one["updates"] == [10, 10]
        assert one["results"].items() <= calm["results"].items()


@pytest.mark.slow
@pytest.mark.dist
@pytest.mark.timeout(300)
@pytest.mark.parametrize("at_once", [1, 2])
@pytest.mark.parametrize("guarded", [True, False])
@pytest.mark.parametrize("sharded", [True, False])
@pytest.mark.sample(4)
def test_the_state_of_a_script_outlives_kills_at_every_place_of_its_loop(tmp_path, guarded, at_once, sharded):
    # Two at once are of one replica where the model is sharded, so that the other one lives.
    ranks = 4 if sharded else 3
    settings = {"steps": 3 * len(PLACES) + 2, "guarded": guarded, "sharded": sharded}
    _, calm = script_job.run(tmp_path / "calm", settings, ranks=ranks, spares=0)
    faults = faults_everywhere(2 if sharded and at_once == 2 else ranks, at_once)
    recoveries, killed = script_job.run(tmp_path / "killed", settings, faults, ranks=ranks, spares=4)
    assert len(recoveries.recoveries) >= len(PLACES)
    assert all(one.lost_iterations == 0 for one in recoveries.recoveries)
    for one, expected in zip(killed, calm, strict=True):
        assert one["digest"] == expected["digest"] and one["updates"] == expected["updates"]
        assert one["results"].items() <= expected["results"].items()


def test_what_cannot_be_protected_is_refused_by_name():
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    class FSDPLinear(nn.Linear):
        """Class of the name that `fully_shard` gives what it has sharded."""

    wrapped = DistributedDataParallel.__new__(DistributedDataParallel)
    nn.Module.__init__(wrapped)
    for arguments, told in (
        ({"model": wrapped}, "process group dies with a rank"),
        ({"model": FSDPLinear(2, 2)}, "fully_shard has sharded"),
        ({"steps": None}, "expected one of them"),
        ({"sync": DDP}, "got sync=<class .*DDP'>; expected one of Buckets"),
        ({"state": Ranks()}, r"got state=Ranks\(.*; expected State\(...\)"),
        (
            {"sync": Backward(), "state": State(clip=1.0)},
            "the norm of all gradients is known only when the last bucket",
        ),
        ({}, "no agent has started this process, nor torchrun"),
    ):
        given = {"model": model, "steps": 3, **arguments}
        with pytest.raises(InputError, match=told):
            protect(given.pop("model"), optimizer, lambda step, share: None, **given)
