"""What older and newer traces tell of collectives on accelerators, and traces of single ranks."""

import pytest

from tests.trace.profiled import US, Profiled, info
from wirewise.errors import TraceError
from wirewise.trace import kineto, open_trace

SEND_RECV = "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclWorkElem)"


def communications(rank):
    return [op for op in rank.ops if op.kind == "communication"]


@pytest.mark.parametrize(
    ("annotation", "kernel", "collective"),
    [
        ("nccl:all_to_all", SEND_RECV, "all_to_all"),
        ("nccl:all_to_all", "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", "all_to_all"),
        ("nccl:_all_gather_base", "ncclKernel_AllGather_RING_LL_Sum_int8_t(ncclWorkElem)", "all_gather"),
        ("nccl:_reduce_scatter_base", "ncclDevKernel_Generic(ncclDevComm*)", "reduce_scatter"),
        ("nccl:all_reduce", "ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)", "all_reduce"),
        # Nothing tells what it is: not the first name that is part of it.
        ("other", SEND_RECV, ""),
        ("other", "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*)", "all_reduce"),
    ],
)
def test_collectives_of_older_traces_are_told_by_the_annotation_around_their_launch(
    tmp_path, annotation, kernel, collective
):
    made = Profiled(info(0, 1))
    made.step(3, 0, 1000)
    made.host("aten::mm", 10, 400)
    made.older_collective(annotation, kernel, 200, 300, launched=100)
    # On another thread, around the launch as well.
    made.span("user_annotation", "nccl:broadcast", 90, 40, tid=99)
    (op,) = communications(kineto.read(made.write(tmp_path / "a.json")))
    assert (op.collective, op.step, op.seq, op.stream) == (collective, 3, 0, "20")
    assert op.size_bytes == (3200 if annotation.startswith("nccl:") else 0)
    assert op.enqueued_s == pytest.approx((95 if annotation.startswith("nccl:") else 100) * US)


def test_ids_of_launches_are_no_ids_of_calls(tmp_path):
    made = Profiled(info(0, 1))
    made.step(0, 0, 1000)
    # The next kernel has this number for its launch, as it happens.
    made.span("cpu_op", "record_param_comms", 1, 5, **{"External id": 1001, "Collective name": "broadcast"})
    made.older_collective("nccl:all_to_all", SEND_RECV, 200, 300, launched=100)
    (op,) = communications(kineto.read(made.write(tmp_path / "a.json")))
    assert op.collective == "all_to_all"


def one_rank(tmp_path, told):
    made = Profiled(told)
    made.step(0, 0, 1000)
    made.host("aten::mm", 10, 400)
    made.older_collective("nccl:all_reduce", "ncclDevKernel_AllReduce", 200, 300, launched=100)
    return made.write(tmp_path / f"rank-{(told or {}).get('rank', 0)}.pt.trace.json")


@pytest.mark.parametrize(
    ("told", "partial"),
    [
        (info(34, 300), "299 of 300 ranks are missing"),
        (info(3, 4), "ranks 0, 1, 2 are missing, of 4"),
        (info(1, 2), "rank 0 is missing, of 2"),
        (info(1), "only rank 1 is there, of a run that does not tell how many ranks it had"),
        (info(0), "only rank 0 is there, of a run that does not tell how many ranks it had"),
    ],
)
def test_one_rank_of_many_is_read_where_that_is_enough(tmp_path, told, partial):
    path = one_rank(tmp_path, told)
    trace = open_trace([path], partial=True)
    assert trace.partial == partial
    assert [rank.header.rank for rank in trace.ranks] == [told["rank"]]
    with pytest.raises(TraceError) as error:
        open_trace([path])
    # Not 299 numbers.
    assert len(str(error.value)) < len(str(tmp_path)) + 200


def test_ranks_that_do_not_tell_how_many_they_are_count_themselves(tmp_path):
    trace = open_trace([one_rank(tmp_path, info(rank)) for rank in (0, 1)])
    assert (trace.partial, trace.world_size) == ("", 2)
    assert [rank.header.groups for rank in trace.ranks] == [{"nccl": [0, 1]}] * 2


def test_a_rank_of_many_without_communication_is_read_with_a_note(tmp_path):
    made = Profiled(info(5, 8))
    made.step(0, 0, 100)
    made.host("aten::mm", 10, 40)
    path = made.write(tmp_path / "a.json")
    trace = open_trace([path], partial=True)
    assert any("has no communication" in note for note in trace.notes)
    with pytest.raises(TraceError, match="rank 5 of 8 but has no communication"):
        kineto.read(path)
