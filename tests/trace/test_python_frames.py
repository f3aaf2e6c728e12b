"""Functions of Python fill the time between operators."""

import pytest

from tests.trace.profiled import US, Profiled, info
from wirewise.sim.bounds import verdict_of
from wirewise.sim.usage import rank_uses
from wirewise.trace import kineto, open_trace
from wirewise.trace.profiles import ProfileEvent
from wirewise.trace.python_frames import FRAME, script_spans


def frames(*spans):
    return [ProfileEvent(name=name, ts=float(start), dur=float(end - start)) for name, start, end in spans]


@pytest.mark.parametrize(
    ("functions", "work", "expected"),
    [
        ([("main", 0, 1000)], [], [("main", 0, 1000)]),
        ([("main", 0, 1000), ("load", 100, 400)], [(500, 600)], [("load", 0, 500), ("main", 600, 1000)]),
        # Gaps that are too short, and time of no function, are nobody's.
        ([("a", 0, 100), ("b", 300, 400)], [(50, 90)], [("a", 0, 50), ("b", 300, 400)]),
        ([("a", 0, 99), ("b", 100, 199), ("c", 200, 300)], [(0, 100)], [("c", 100, 300)]),
        ([("a", 100, 200)], [(0, 150), (160, 500)], []),
        ([], [(0, 10)], []),
    ],
)
def test_time_of_functions_outside_of_operators(functions, work, expected):
    found = script_spans(frames(*functions), work)
    assert [(span.start, span.end) for span in found] == [(start, end) for _, start, end in expected]
    assert [span.name for span in found][: len(found)] == [name for name, *_ in expected] or len(
        functions
    ) == 3


def scripted(made):
    made.span(FRAME, "train.py(1): <module>", 0, 3000)
    for number in range(3):
        at = 1000 * number
        made.span(FRAME, "augment.py(7): flip", at + 100, 600)
        made.host("aten::mm", at + 700, 200)
        made.kernel("gemm", at + 720, 100, launched=at + 710)
    return made


def test_a_script_between_operators_is_no_unknown_time(tmp_path):
    made = scripted(Profiled(info(0, 1)))
    for number in range(3):
        made.step(number, 1000 * number, 1000)
    (use,) = rank_uses(open_trace([made.write(tmp_path / "a.json")], partial=True))
    assert use.unrecorded_s < 0.05 * use.step_s
    verdict = verdict_of([use])
    assert verdict.bound == "host" and "the host is most in augment.py(7): flip" in verdict.sentence


def test_the_span_of_the_whole_recording_is_no_step(tmp_path):
    made = scripted(Profiled(info(0, 1)))
    made.span("Trace", "PyTorch Profiler (0)", -5000, 20_000, tid="PyTorch Profiler", pid="Traces")
    rank = kineto.read(made.write(tmp_path / "a.json"))
    (step,) = [op for op in rank.ops if op.kind == "step"]
    assert (step.start_s, step.end_s) == (pytest.approx(0.0), pytest.approx(3000 * US))
