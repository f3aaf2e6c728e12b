"""Queues of jobs are read, written and refused."""

from __future__ import annotations

import msgspec
import pytest

from wirewise.errors import InputError
from wirewise.sim.jobs import draw_queue, edge_kinds
from wirewise.trace import EdgeCluster, JobKind, JobQueue, QueuedJob, read_job, read_queue, write_queue

KINDS = {"even": JobKind(progress=((0.0, 0.0), (0.5, 1.0)), cpus=1)}
QUEUE = JobQueue(
    queue=(QueuedJob(name="a", kind="even", arrival=0), QueuedJob(name="b", kind="even", arrival=2)),
    kinds=KINDS,
    clusters=(EdgeCluster(name="x", cpus=2, gpus=3), EdgeCluster(name="y", cpus=4, gpus=0)),
)


def test_a_queue_reads_back_equal(tmp_path):
    write_queue(draw_queue(noise=0.3, seed=4), tmp_path / "queue.json")
    assert read_queue(tmp_path / "queue.json") == draw_queue(noise=0.3, seed=4)
    assert read_job([tmp_path / "queue.json"]) == draw_queue(noise=0.3, seed=4)


def test_tables_are_padded_with_their_last_row_and_column():
    arrays = msgspec.structs.replace(
        QUEUE, kinds=KINDS | {"wide": JobKind(progress=((0.1, 0.1, 0.2, 0.3),) * 3)}
    ).arrays()
    assert arrays.progress.shape == (2, 5, 4)
    assert arrays.progress[0].tolist() == [[0.0] * 4, *[[0.5, 1.0, 1.0, 1.0]] * 4]
    assert arrays.progress[1].tolist() == [[0.1, 0.1, 0.2, 0.3]] * 5
    assert arrays.room.tolist() == [[2, 3], [4, 0]] and arrays.reach.all()


def job(number, **change):
    return {
        "queue": tuple(
            msgspec.structs.replace(one, **change) if n == number else one
            for n, one in enumerate(QUEUE.queue)
        )
    }


def kind(**change):
    return {"kinds": {"even": msgspec.structs.replace(KINDS["even"], **change)}}


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"queue": ()}, "got 2 clusters and 0 jobs"),
        ({"clusters": ()}, "got 0 clusters"),
        ({"slot_s": 0.0}, "slot_s is 0.0"),
        ({"clusters": (QUEUE.clusters[0],) * 2}, r"clusters\[1\] \('x'\): the name is empty or given twice"),
        ({"clusters": (EdgeCluster(name="x", cpus=0, gpus=1),)}, "has 0 cpus and 1 gpus"),
        (job(1, name="a"), r"queue\[1\] \('a'\): the name is empty or given twice"),
        (job(0, arrival=3), r"queue\[1\] \('b'\): arrives in slot 2; expected jobs in order of arrival, from 3 on"),
        (job(0, arrival=-1), "arrives in slot -1"),
        (job(0, kind="odd"), "kind 'odd' is unknown; expected one of: even"),
        (job(0, pace=0.0), "pace is 0.0"),
        (job(0, clusters=(2,)), r"may run on clusters \[2\]; expected different numbers of 0 to 1"),
        (job(0, clusters=(1, 1)), r"may run on clusters \[1, 1\]"),
        (kind(progress=((0.0,), (0.5, 1.0))), "expected a table with even rows"),
        (kind(progress=((0.0, -1.0), (0.5, 1.0))), "a figure is negative"),
        (kind(ceiling=1.0), "ceiling is 1.0; expected 0, or more than 1"),
        (kind(cpus=0), "expected at least one of either"),
        (kind(gpus=1) | {"clusters": QUEUE.clusters[1:]}, "needs 1 cpus and 1 gpus, which no cluster"),
        (kind(progress=((0.0, 0.0), (0.0, 1.0))), "makes no progress with the least"),
        (job(1, pace=1e-8), r"queue\[1\] \('b'\): makes 5e-09 of its way in a slot; expected at least 1e-07"),
        ({"clusters": (EdgeCluster(name="x", cpus=10**5, gpus=10**5),)}, "1 kinds on clusters of up to 100000 cpus"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(change, said):
    with pytest.raises(InputError, match=said):
        msgspec.structs.replace(QUEUE, **change)


def test_a_file_with_something_else_is_named(tmp_path):
    path = tmp_path / "queue.json"
    with pytest.raises(InputError, match=r"queue\.json"):
        read_queue(path)
    path.write_text('{"queue": [{"name": "a", "kind": "even"}], "kinds": {}, "clusters": []}')
    with pytest.raises(InputError, match=r"queue\.json.*arrival.*check the file"):
        read_queue(path)


def test_kinds_of_the_paper_take_four_slots_and_two_at_least():
    kinds = edge_kinds()
    assert {kinds["image"].progress[c][g] for c in range(17) for g in range(17)} == {0.25}
    assert kinds["text"].ceiling == 1.2 and kinds["text"].progress[2][16] == pytest.approx(0.76159, abs=1e-5)
