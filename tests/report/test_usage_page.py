"""What ranks with accelerators recorded by themselves."""

from __future__ import annotations

import json

import pytest

from tests.cli.test_trace import call, device_file, said
from tests.trace.profiled import Profiled, info


@pytest.mark.parametrize("ranks", [(34,), (0, 1)])
def test_recorded_devices_are_shown_with_causes_of_idleness(ranks, tmp_path):
    size = 300 if ranks == (34,) else 2
    files = [device_file(tmp_path / f"r{rank}.pt.trace.json", rank, size) for rank in ranks]
    page = tmp_path / "r.html"
    lines = said(call("trace", "show", *files, "--html", page)).splitlines()
    assert lines[0].startswith("The host bounds the step: ") and "CUDA graphs" in lines[0]
    heads = [line.split("\t")[:2] for line in lines]
    assert ["rank", "step"] in heads and ["rank", "idle"] in heads
    # Nothing of a replay, and no changes of buckets.
    assert not any("bucket_mb" in line or "replayed" in line.split("\t") for line in lines)
    missing = "Note: 299 of 300 ranks are missing; what is told here is of the others, nothing is replayed"
    assert (missing in lines) == (size == 300)
    if size == 2:
        assert "Note: kernels and what launches them count as compute alike" in said(call("sim", *files))
    assert page.read_text().startswith("<!doctype html>") and "until late launches" in page.read_text()
    found = json.loads(said(call("trace", "show", *files, "--json", "-")))
    assert found["bound_by"] == "host" and found["step_s"] == pytest.approx(1e-3)
    assert [row["rank"] for row in found["ranks"]] == list(ranks)
    for row in found["ranks"]:
        # Of the first two steps: ten kernels of 20 us and an all-to-all of 20 us, half beside the first of them.
        assert row["compute_s"] == pytest.approx(200e-6) and row["communication_s"] == pytest.approx(20e-6)
        assert row["exposed_communication_s"] == pytest.approx(10e-6)
        assert row["overlap_share"] == pytest.approx(0.5)
        # From the first kernel, at 30 us, to the end of the last, at 1950 us.
        assert row["idle_share"] == pytest.approx(1 - 420 / 1920)


def test_devices_are_shown_without_what_only_a_comparison_of_ranks_needs(tmp_path):
    # Messages without the rank at their other end, and of other numbers on each rank, as in a pipeline.
    files = []
    for rank in (0, 1):
        made = Profiled(info(rank, 2))
        made.step(0, 0, 1000)
        made.host("aten::mm", 0, 1000)
        made.kernel("gemm", 10, 900, launched=5)
        for place in range(1 + rank):
            name = ("nccl:send", "nccl:recv")[rank]
            made.older_collective(
                name, "ncclDevKernel_SendRecv", 100 * place + 50, 20, launched=20 + 20 * place
            )
        files.append(made.write(tmp_path / f"r{rank}.json"))
    assert said(call("trace", "show", *files)).startswith("Compute bounds the step: it fills 90 %")
