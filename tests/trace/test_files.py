"""Trace files: what is written reads back; every fault has its own message."""

import msgspec
import pytest

from wirewise.errors import TraceError
from wirewise.trace.files import RankWriter, rank_file, read, read_rank, write_trace
from wirewise.trace.records import Header, Op, Probe, RankTrace, Trace


def header(rank=0, world=2, **more):
    return Header(rank=rank, world_size=world, host=f"host{rank}", groups={"world": [0, 1]}, **more)


def ops(step=0, start=1.0):
    return [
        Op(name="fc", kind="forward", start_s=start, end_s=start + 0.125, step=step),
        Op(
            name="bucket 0",
            kind="communication",
            start_s=start + 0.1,
            end_s=start + 1 / 3,
            step=step,
            thread="comm",
            group="world",
            seq=step,
            collective="all_reduce",
            size_bytes=100,
            parameters=("fc.weight", "fc.bias"),
        ),
        Op(name="step", kind="step", start_s=start, end_s=start + 0.5, step=step),
    ]


def two_ranks(**more):
    return Trace(ranks=[RankTrace(header(rank, **more), ops()) for rank in (0, 1)])


def test_what_is_written_reads_back_equal(tmp_path):
    trace = two_ranks(clock_pairs=[(1.5, 1_700_000_000_000_000_000)], run="a")
    write_trace(trace, tmp_path / "run")
    assert read(tmp_path / "run") == trace


def test_later_probes_and_clock_readings_join_the_header(tmp_path):
    probe = Probe(peer=1, sent_s=1.0, peer_s=5.0, received_s=1.001)
    with RankWriter(rank_file(tmp_path, 0), header(world=1)) as writer:
        writer.write(ops())
        writer.probe(probe)
        writer.clock(2.0, 17)
    rank = read(tmp_path).ranks[0]
    assert (rank.header.probes, rank.header.clock_pairs) == ([probe], [(2.0, 17)])
    assert rank.ops == ops()


def test_flushed_steps_are_readable_before_the_writer_closes(tmp_path):
    writer = RankWriter(rank_file(tmp_path, 0), header(world=1))
    writer.write(ops())
    assert read_rank(writer.path).ops == []
    writer.flush()
    assert read_rank(writer.path).ops == ops()
    writer.close()


def test_a_cut_off_last_line_is_left_out_at_every_place(tmp_path):
    write_trace(two_ranks(), tmp_path)
    path = rank_file(tmp_path, 1)
    whole = path.read_bytes()
    begin = whole[:-1].rindex(b"\n") + 1
    for cut in range(begin + 1, len(whole)):
        path.write_bytes(whole[:cut])
        rank = read_rank(path)
        assert (rank.ops, rank.complete) == (ops()[:2], False)


def test_a_run_with_a_cut_off_rank_says_so(tmp_path):
    write_trace(Trace(ranks=[RankTrace(header(r), ops(0) + ops(1, 2.0)) for r in (0, 1)]), tmp_path)
    path = rank_file(tmp_path, 1)
    path.write_bytes(path.read_bytes()[:-3])
    trace = read(tmp_path)
    assert trace.steps() == [0]
    assert [rank.complete for rank in trace.ranks] == [True, False]
    assert "rank 1 was cut off" in trace.notes[0]


def test_a_broken_line_in_the_middle_is_an_error(tmp_path):
    write_trace(two_ranks(), tmp_path)
    path = rank_file(tmp_path, 0)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:2], b"{broken\n", *lines[2:]]))
    with pytest.raises(TraceError, match=r"rank-0\.jsonl, line 3: .*record again"):
        read(tmp_path)


def test_a_missing_rank_is_named(tmp_path):
    write_trace(two_ranks(), tmp_path)
    rank_file(tmp_path, 1).unlink()
    with pytest.raises(TraceError, match="1 of 2 ranks: missing rank 1"):
        read(tmp_path)


@pytest.mark.parametrize(("field", "value"), [("run", "b"), ("world_size", 3)])
def test_mixed_runs_are_named(tmp_path, field, value):
    trace = two_ranks(run="a")
    trace.ranks[1].header = msgspec.structs.replace(trace.ranks[1].header, **{field: value})
    write_trace(trace, tmp_path)
    with pytest.raises(TraceError, match=f"mixes runs: {field} is .* on rank 0 and {value!r} on rank 1"):
        read(tmp_path)


def test_a_renamed_file_is_named(tmp_path):
    write_trace(two_ranks(), tmp_path)
    rank_file(tmp_path, 1).rename(rank_file(tmp_path, 4))
    with pytest.raises(TraceError, match=r"rank-4\.jsonl says that it is of rank 1"):
        read(tmp_path)


@pytest.mark.parametrize("text", [b"", b"hello\n", b"[1, 2]\n", b'{"traceEvents": []}\n', b"\xff\xfe\n"])
def test_a_foreign_file_is_named(tmp_path, text):
    rank_file(tmp_path, 0).write_bytes(text)
    with pytest.raises(TraceError, match="no trace of wirewise"):
        read(tmp_path)


def test_another_format_is_named(tmp_path):
    write_trace(two_ranks(), tmp_path)
    path = rank_file(tmp_path, 0)
    path.write_bytes(path.read_bytes().replace(b'"format":1', b'"format":7', 1))
    with pytest.raises(TraceError, match="format 7; this version reads format 1"):
        read(tmp_path)


def test_no_folder_no_files_and_no_steps(tmp_path):
    with pytest.raises(TraceError, match="no folder"):
        read(tmp_path / "nowhere")
    with pytest.raises(TraceError, match="no trace in"):
        read(tmp_path)
    write_trace(Trace(ranks=[RankTrace(header(world=1), ops(step=-1))]), tmp_path)
    with pytest.raises(TraceError, match="no steps in"):
        read(tmp_path)


@pytest.mark.parametrize("change", [{"kind": "nap"}, {"end_s": 0.5}])
def test_ops_that_cannot_be_are_refused(tmp_path, change):
    bad = msgspec.structs.replace(ops()[0], **change)
    write_trace(Trace(ranks=[RankTrace(header(world=1), [bad, *ops()])]), tmp_path)
    with pytest.raises(TraceError, match=r"line 2: (kind 'nap'|'fc' ends)"):
        read(tmp_path)


def test_clocks_hours_apart_are_a_note(tmp_path):
    trace = two_ranks()
    for rank, second in zip(trace.ranks, (1_700_000_000, 1_700_010_800), strict=True):
        rank.header = msgspec.structs.replace(rank.header, clock_pairs=[(1.0, second * 10**9)])
    write_trace(trace, tmp_path)
    found = read(tmp_path)
    assert found.notes == [
        "the clocks of rank 0 and rank 1 are 3.0 hours apart; alignment corrects that where the ranks share "
        "collectives or probes"
    ]


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    with pytest.raises(TraceError, match="cannot write the trace"):
        RankWriter(tmp_path / "missing" / "rank-0.jsonl", header())


def test_ops_written_short_read_back_like_the_others(tmp_path):
    path = rank_file(tmp_path, 0)
    forward, bucket, step = ops()
    with RankWriter(path, header(world=1)) as writer:
        for op in (forward, bucket, step):
            writer.form(op)
        writer.group("pair", [0, 3])
        writer.times(4, [(1, 2_000_000, 2_250_001, 7), (0, 1_000_000, 1_000_000, -1)])
        writer.times(5, [(2, 10**15 + 1, 10**15 + 3, -1)])
    found = read_rank(path)
    assert found.header.groups == {"world": [0, 1], "pair": [0, 3]}
    change = msgspec.structs.replace
    assert found.ops == [
        change(bucket, step=4, start_s=2.0, end_s=2.250001, seq=7, enqueued_s=2.0),
        change(forward, step=4, start_s=1.0, end_s=1.0),
        change(step, step=5, start_s=(10**15 + 1) / 1e6, end_s=(10**15 + 3) / 1e6),
    ]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"times":[0,[[1,5,5]]]}', "one of 1 forms"),
        (b'{"times":[0,[[0,5]]]}', r"times \[0, 5\]; expected \[form, start, length\]"),
        (b'{"times":[0,[[0,5,-1]]]}', "ends at"),
        (b'{"times":[0,[[0,5,"x"]]]}', "Expected `int`"),
    ],
)
def test_times_that_fit_no_form_are_damage(tmp_path, line, message):
    path = rank_file(tmp_path, 0)
    with RankWriter(path, header(world=1)) as writer:
        writer.form(ops()[0])
    path.write_bytes(path.read_bytes() + line + b"\n")
    with pytest.raises(TraceError, match=message):
        read_rank(path)


def test_a_file_that_another_rank_is_writing_is_refused_and_stays_whole(tmp_path):
    path = rank_file(tmp_path, 0)
    with RankWriter(path, header(world=1)):
        before = path.read_bytes()
        with pytest.raises(TraceError, match=r"rank-0.jsonl is being written by a rank of another job"):
            RankWriter(path, header(world=1))
        assert path.read_bytes() == before
    with RankWriter(path, header(world=2)):
        assert path.read_bytes() != before
