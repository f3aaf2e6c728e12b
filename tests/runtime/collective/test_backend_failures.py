"""The torch backend when something goes wrong: every survivor hears of it, from the call and from `wait()`."""

import contextlib
import datetime
import itertools
import os

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from tests.harness.processes import _SERVER, run_ranks_as_processes
from tests.harness.tiers import keep
from wirewise.errors import InputError, PeerError
from wirewise.runtime import collective

pytestmark = pytest.mark.dist

RANKS, VICTIM = 3, 2
COUNT = 300_000


def parts(value):
    return [torch.full((COUNT,), float(value)) for _ in range(RANKS)]


def whole():
    return torch.ones(RANKS * COUNT)


CALLS = {
    "all_reduce": lambda g, **k: dist.all_reduce(torch.ones(COUNT), group=g, **k),
    "broadcast": lambda g, **k: dist.broadcast(torch.ones(COUNT), VICTIM, group=g, **k),
    "reduce": lambda g, **k: dist.reduce(torch.ones(COUNT), 0, group=g, **k),
    "all_gather": lambda g, **k: dist.all_gather(parts(0), torch.ones(COUNT), group=g, **k),
    "all_gather_into_tensor": lambda g, **k: dist.all_gather_into_tensor(
        whole(), torch.ones(COUNT), group=g, **k
    ),
    "reduce_scatter": lambda g, **k: dist.reduce_scatter(torch.ones(COUNT), parts(1), group=g, **k),
    "reduce_scatter_tensor": lambda g, **k: dist.reduce_scatter_tensor(
        torch.ones(COUNT), whole(), group=g, **k
    ),
    "gather": lambda g, **k: dist.gather(
        torch.ones(COUNT), parts(0) if dist.get_rank() == 0 else None, 0, group=g, **k
    ),
    "scatter": lambda g, **k: dist.scatter(
        torch.ones(COUNT), parts(1) if dist.get_rank() == VICTIM else None, VICTIM, group=g, **k
    ),
    "all_to_all": lambda g, **k: dist.all_to_all(parts(0), parts(1), group=g, **k),
    "all_to_all_single": lambda g, **k: dist.all_to_all_single(whole(), whole(), group=g, **k),
    "barrier": lambda g, **k: dist.barrier(group=g, **k),
}


def survives(rank, call, asynchronous, how):
    """What each of three calls raised, None for nothing: the one in which rank 2 is lost, it again, and a sum."""
    store = dist.distributed_c10d._get_default_store()
    group = dist.new_group(backend="wirewise", timeout=datetime.timedelta(seconds=10))
    CALLS[call](group)
    dist.barrier()  # over gloo, so that nobody is in the first call when the victim goes
    if rank == VICTIM:
        CALLS[call](group, async_op=True)
        if how == "cut":
            for link in collective.group_of(group)._engine._links.values():
                # A link that another end has closed already is cut.
                with contextlib.suppress(OSError):
                    link.socket.shutdown(2)
        if how == "killed":
            os._exit(9)
        return None
    seen = []
    for turn, attempt in enumerate((call, call, "all_reduce")):
        try:
            work = CALLS[attempt](group, async_op=asynchronous)
            if asynchronous:
                work.wait()
            seen.append(None)
        except PeerError as error:
            seen.append(str(error))
        store.set(f"turn {turn} of rank {rank}", "over")
        store.wait([f"turn {turn} of rank {other}" for other in range(RANKS) if other != VICTIM])
    return seen


def every_survivor_heard(answers):
    """What was on its way may arrive, and who only sends needs nobody: but once one call failed, all later ones do."""
    turns = list(zip(*answers, strict=True))
    assert all(turns[2]) and any(turns[1]), answers
    for earlier, later in itertools.pairwise(turns):
        assert all(later) or not any(earlier), answers
    assert all(str(VICTIM) in message for turn in turns for message in turn if message), answers


@pytest.mark.slow
@pytest.mark.parametrize(
    ("call", "asynchronous"),
    keep([("all_reduce", True)], itertools.product(sorted(CALLS), (False, True))),
)
@pytest.mark.sample(10)
def test_a_cut_during_a_collective_is_raised_by_every_survivor(call, asynchronous):
    every_survivor_heard(run_ranks_as_processes(RANKS, survives, call, asynchronous, "cut")[:VICTIM])


def killed(rank, store, call, answers):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=RANKS)
    answers.send((rank, survives(rank, call, False, "killed")))
    answers.close()
    os._exit(0)


def run_until_killed(tmp_path, target, *args):
    """Answers of the survivors, and the exit codes of all."""
    pipes, processes = [], []
    for rank in range(RANKS):
        ours, theirs = _SERVER.Pipe(duplex=False)
        process = _SERVER.Process(target=target, args=(rank, str(tmp_path / "store"), *args, theirs))
        process.start()
        theirs.close()
        pipes.append(ours)
        processes.append(process)
    try:
        answers = [pipe.recv() for rank, pipe in enumerate(pipes) if rank != VICTIM and pipe.poll(60)]
        for process in processes:
            process.join(20)
        return answers, [process.exitcode for process in processes]
    finally:
        for process, pipe in zip(processes, pipes, strict=True):
            process.kill()
            process.join()
            process.close()
            pipe.close()


@pytest.mark.parametrize("call", keep(["all_reduce"], sorted(CALLS)))
def test_a_killed_rank_is_raised_by_every_survivor(call, tmp_path):
    answers, codes = run_until_killed(tmp_path, killed, call)
    assert codes == [0, 0, 9]
    every_survivor_heard([seen for _, seen in answers])


def killed_in_ddp(rank, store, answers):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=RANKS)
    group = dist.new_group(backend="wirewise", timeout=datetime.timedelta(seconds=10))
    model = DistributedDataParallel(torch.nn.Linear(300, 300), process_group=group)
    try:
        for step in range(10):
            if rank == VICTIM and step == 3:
                os._exit(9)
            model(torch.ones(2, 300)).sum().backward()
    except RuntimeError as error:
        answers.send((rank, str(error)))
    else:
        answers.send((rank, "nothing was raised"))
    answers.close()
    os._exit(0)


@pytest.mark.slow
def test_ddp_ends_with_the_error_when_a_rank_dies(tmp_path):
    answers, codes = run_until_killed(tmp_path, killed_in_ddp)
    assert codes == [0, 0, 9]
    assert len(answers) == RANKS - 1
    for _, message in answers:
        assert "rank 2" in message and "PeerError" in message, message


def refused(rank):
    group = dist.new_group(backend="wirewise")
    for dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        values = torch.ones(4).to(dtype)
        for asynchronous in (False, True):
            with pytest.raises(InputError, match="float8"):
                dist.all_reduce(values, group=group, async_op=asynchronous)
        with pytest.raises(InputError, match="float8"):
            collective.group_of(group).reduce_scatter(torch.ones(2).to(dtype), values)
        moved = torch.full((4,), float(rank)).to(dtype)
        dist.broadcast(moved, 1, group=group)
        assert moved.float().tolist() == [1.0] * 4
    with pytest.raises(InputError, match=r"'min' of torch\.complex64"):
        collective.group_of(group).all_reduce(torch.ones(4, dtype=torch.complex64), "min")
    with pytest.raises(InputError, match=r"'band' of torch\.float32"):
        dist.all_reduce(torch.ones(4), dist.ReduceOp.BAND, group=group)
    with pytest.raises(InputError, match="to_dense"):
        dist.all_reduce(torch.ones(4).to_sparse(), group=group)
    after = torch.full((4,), rank + 1.0)
    work = dist.all_reduce(after, group=group, async_op=True)
    assert work.wait() and work.is_completed() and work.exception() is None
    assert torch.equal(work.get_future().value()[0], after)
    return after.tolist()


def test_types_that_cannot_be_reduced_are_refused_and_the_group_goes_on():
    assert run_ranks_as_processes(2, refused) == [[3.0] * 4] * 2
