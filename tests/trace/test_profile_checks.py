"""Times that cannot be true are refused, whatever made them so."""

import random

import pytest

from tests.trace.profiled import Profiled, info
from wirewise.errors import TraceError
from wirewise.trace import kineto


def recorded(steps=4):
    made = Profiled(info(0, 1))
    for step in range(steps):
        at = 1000 + 10_000 * step
        made.step(step, at, 9_000)
        for number in range(10):
            made.host("aten::mm", at + 300 * number, 200)
            made.kernel("gemm", at + 500 + 500 * number, 400, launched=at + 300 * number + 50)
    return made


def half(made, *, cats, change):
    for number, event in enumerate(made.events):
        if event["cat"] in cats and number % 2:
            change(event)


def zero(event):
    event["ts"] = 0


def shuffled(event):
    event["ts"] = 1000 + random.Random(event["ts"]).random() * 30_000


def long(event):
    event["dur"] *= 40


def negative(event):
    event["dur"] = -5


def early(event):
    event["ts"] -= 50_000


DAMAGE = {
    "starts of all kinds are 0": (
        ("kernel", "cpu_op", "cuda_runtime", "user_annotation"),
        zero,
        "on stream 7 begin before",
    ),
    "starts of operators are 0": (("cpu_op",), zero, "of thread 1 have the start 0"),
    "starts of kernels are 0": (("kernel",), zero, "on stream 7 begin before"),
    "kernels at random": (("kernel",), shuffled, "begin"),
    "kernels too long": (("kernel",), long, "on stream 7 begin before"),
    "less than no time": (("cpu_op",), negative, "'aten::mm' lasts -5 us"),
    "kernels before their launch": (("kernel",), early, "before their launch"),
    "steps on top of each other": (("user_annotation",), zero, "step "),
}


def test_times_as_they_are_recorded_are_read(tmp_path):
    assert len(kineto.read(recorded().write(tmp_path / "a.json")).ops) > 80


@pytest.mark.parametrize("name", DAMAGE)
def test_damaged_times_are_refused(name, tmp_path):
    cats, change, words = DAMAGE[name]
    made = recorded()
    half(made, cats=cats, change=change)
    path = made.write(tmp_path / "a.json")
    with pytest.raises(TraceError) as error:
        kineto.read(path)
    assert (
        words in str(error.value)
        and "times are damaged" in str(error.value)
        and str(path) in str(error.value)
    )


def test_a_few_kernels_that_overlap_are_no_damage(tmp_path):
    made = recorded()
    for event in [e for e in made.events if e["cat"] == "kernel"][:3]:
        event["dur"] = 800
    assert kineto.read(made.write(tmp_path / "a.json")).ops
