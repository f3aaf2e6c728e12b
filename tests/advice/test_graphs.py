"""Advice on full-graph training: modes in which rows of neighbours travel."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.trace.synthetic import make
from wirewise import instruments
from wirewise.advice import advise
from wirewise.advice.families import graphs
from wirewise.sim.rewrite import scale_messages
from wirewise.sim.traces import recorded_steps
from wirewise.trace import Op, align

ROWS = 40 << 20


def traced(mode: str, bits: str, parameters: tuple[str, ...] = ()) -> Any:
    """Two ranks of a job that sum gradients, of named parameters under a wrapper, and send each other rows."""
    trace = align(make(ranks=2, steps=8, sizes=(4_000,)).seen)
    for rank in trace.ranks:
        rank.header.environment.update(graph_mode=mode, graph_bits=bits)
        rank.ops = [
            msgspec.structs.replace(op, parameters=parameters) if op.collective == "all_reduce" else op
            for op in rank.ops
        ]
        for step in trace.steps():
            (mark,) = [op for op in rank.ops if op.kind == "step" and op.step == step]
            took_s = mark.end_s - mark.start_s
            at = mark.start_s + 0.02 * took_s
            rank.ops += [
                Op(
                    name=name, kind="communication", start_s=at, end_s=at + 0.97 * took_s, step=step, thread="comm",
                    group="world", collective=name, size_bytes=ROWS, peer=1 - rank.header.rank, tag=step,
                )
                for name in ("send", "recv")
            ]  # fmt: skip
    return trace


def test_modes_of_fewer_bits_are_predicted_and_the_others_named() -> None:
    found = advise(traced("fp32", "32"))
    modes = {one.planner: one for one in found.candidates if one.family == "graph"}
    assert set(modes) == {"bf16", "uniform-8", "adaqp-p", "adaqp"}
    # Beyond half the bytes the computation is longer.
    assert modes["uniform-8"].predicted_step_s <= modes["bf16"].predicted_step_s < found.step_s
    assert modes["adaqp"].predicted_step_s is None and not modes["adaqp-p"].risk
    assert all(
        (one.arguments == {"graph_mode": name} and one.risk) or name == "adaqp-p"
        for name, one in modes.items()
    )
    assert modes["bf16"].lines == ('job = pyg.Job(data, mode="bf16")',)
    # What a wrapper of DistributedDataParallel would take is not offered.
    for family in ("buckets", "bucket-view", "codecs", "accumulation", "sharding"):
        assert "pyg.Job" in found.not_applicable[family]


@pytest.mark.parametrize(
    ("mode", "bits", "words"),
    [
        ("adaqp", "planned", "'adaqp', which decides bits or rows by itself"),
        ("sancus", "32", "'sancus', which decides bits or rows by itself"),
        ("uniform-8", "8", "in 8 bits already"),
        ("fp32", "64", "rows of 64 bits travel whole in every mode"),
        ("fp32, uniform-8", "32, 8", "graphs in several modes were trained (fp32, uniform-8)"),
    ],
)
def test_modes_that_leave_nothing_to_predict_say_so(mode: str, bits: str, words: str) -> None:
    assert words in advise(traced(mode, bits)).not_applicable["graph"]


def test_a_job_without_a_graph_has_no_such_candidates() -> None:
    trace = align(make(ranks=2, steps=8).seen)
    assert graphs.mode_of(trace) == ""
    assert advise(trace).not_applicable["graph"] == "no exchange of rows of a graph was recorded"


def test_messages_alone_are_scaled() -> None:
    flow = recorded_steps(traced("fp32", "32"))[0].dataflow
    half = scale_messages(flow, 0.5)
    sizes = sorted({(b, a) for a, b in zip(half.size_bytes, flow.size_bytes, strict=True) if b})
    assert (ROWS, ROWS / 2) in sizes and any(a == b for a, b in sizes)
    assert half.flow_bytes.sum() < flow.flow_bytes.sum()


def test_a_wrapped_model_beside_a_graph_keeps_its_candidates() -> None:
    found = advise(traced("fp32", "32", ("head.weight",)))
    assert "accumulation" in {one.family for one in found.candidates}


def test_facts_of_two_jobs_are_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instruments, "FACTS", {})
    for mode in ("fp32", "uniform-8", "fp32"):
        instruments.note_fact("graph_mode", mode)
    assert instruments.FACTS == {"graph_mode": "fp32, uniform-8"}
