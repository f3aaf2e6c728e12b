"""How ranks used their devices: by hand, and on public traces against HolisticTraceAnalysis."""

import pytest

from tests.harness.tiers import keep
from tests.trace.profiled import US, Profiled, info
from wirewise.sim.bounds import verdict_of
from wirewise.sim.usage import rank_uses
from wirewise.trace import open_trace


def uses_of(made, tmp_path):
    return rank_uses(open_trace([made.write(tmp_path / "trace.json")], partial=True))


def started(told=None):
    made = Profiled(told)
    made.step(0, 0, 1000)
    return made


def test_every_second_of_a_device_has_its_place(tmp_path):
    made = started(info(2, 8))
    made.host("aten::mm", 0, 1000)
    made.kernel("gemm", 100, 200, launched=50)  # 100 to 300
    made.kernel("gemm", 310, 90, launched=60)  # 310 to 400, a gap of 10 us: launched in time
    made.older_collective("nccl:all_reduce", "ncclDevKernel_AllReduce", 350, 150, launched=70)  # 350 to 500
    made.kernel("Memcpy HtoD (Pageable -> Device)", 480, 70, launched=80, cat="gpu_memcpy")  # 480 to 550
    made.kernel("relu", 700, 100, launched=650)  # 700 to 800, launched after all was done
    made.kernel("relu", 900, 100, launched=660)  # 900 to 1000, launched in time, and waits for 100 us
    (use,) = uses_of(made, tmp_path)
    assert (use.rank, use.lane, use.steps) == (2, "device", 1)
    expected = {
        "step_s": 1000, "wall_s": 900, "compute_s": 490, "communication_s": 150, "exposed_communication_s": 100,
        "copy_s": 50, "idle_s": 260, "host_wait_s": 150, "kernel_wait_s": 10, "other_idle_s": 100, "unrecorded_s": 0,
    }  # fmt: skip
    assert {name: getattr(use, name) / US for name in expected} == pytest.approx(expected, abs=1e-6)
    assert use.overlap_share == pytest.approx(50 / 150)
    assert use.idle_share == pytest.approx(260 / 900)


def test_the_last_of_several_steps_is_left_out(tmp_path):
    made = Profiled()
    for number in range(3):
        made.step(number, 1000 * number, 1000)
        made.host("aten::mm", 1000 * number, 1000)
        made.kernel("gemm", 1000 * number + 100, 400, launched=1000 * number + 50)
    made.kernel("gemm", 900, 50)  # Nobody knows of which step.
    (use,) = uses_of(made, tmp_path)
    assert (use.steps, use.wall_s / US, use.compute_s / US) == (2, pytest.approx(700), pytest.approx(400))


def unknown(made):
    made.host("Torch-Compiled Region: 0/0", 0, 10)
    made.kernel("triton_poi_fused_add_cos_sin_0", 8, 2, launched=5, runtime="cuda_driver")


def test_a_host_alone_is_compute_communication_and_the_rest(tmp_path):
    made = started(info(5, 8))
    made.events.append(
        {"ph": "M", "name": "thread_name", "pid": 1, "tid": 9, "ts": 0, "args": {"name": "pt_gloo_runloop"}}
    )
    made.host("aten::mm", 100, 300)
    made.span("cpu_op", "gloo:all_reduce", 350, 150, tid=9)
    (use,) = uses_of(made, tmp_path)
    assert use.lane == "host"
    parts = (
        use.wall_s,
        use.compute_s,
        use.communication_s,
        use.exposed_communication_s,
        use.idle_s,
        use.unrecorded_s,
    )
    assert [part / US for part in parts] == pytest.approx([1000, 300, 150, 100, 600, 600])
    assert verdict_of([use]).bound == "unknown"
    assert verdict_of([use]).sentence.startswith("Nothing recorded fills 60 % of 1.00 ms. What helps")


# By `TraceAnalysis(trace_files={0: FILE})` of HolisticTraceAnalysis 0.5.0: idle, compute and other time in per cent of
# the device's (`get_temporal_breakdown`), communication that computation covers in per cent (`get_comm_comp_overlap`).
# It cuts times to whole microseconds, which matters where kernels are short: there, its own error is allowed.
PUBLIC = {
    "trace_diff_control_control": (16.20, 61.23, 22.57, 47.03, 0.05),
    "trace_diff_test_test": (7.47, 68.31, 24.23, 68.80, 0.05),
    "trace_filter_sampled_rank-0": (53.56, 17.71, 28.74, 11.81, 0.05),
    "trace_filter_sampled_rank-1": (54.72, 22.57, 22.72, 20.05, 0.05),
    "negative_queue_length_values_check_rank0": (69.44, 14.15, 16.41, 1.37, 0.05),
    "mtia_inference_trace_mtia_inference_rank_0": (4.34, 94.66, 1.00, None, 0.1),
    "critical_path_alexnet_benchmark_result_2869224_1695835535_trace": (99.49, 0.08, 0.43, None, 0.1),
    "amd_trace_mi250_minitoy_train_ROCm6_2_kineto": (98.53, 1.08, 0.39, None, 0.3),
    "ns_resolution_trace_rank-0.Apr_03_18_51_38.1102.pt.trace": (2.63, 96.75, 0.62, None, 1.0),
}


@pytest.mark.parametrize("name", keep(list(PUBLIC)[:2], PUBLIC))
@pytest.mark.slow
@pytest.mark.sample(3)
def test_public_traces_agree_with_holistic_trace_analysis(name, wirewise_data):
    (use,) = rank_uses(open_trace([wirewise_data / "hta-traces" / f"{name}.json.gz"], partial=True))
    idle, compute, other, overlap, within = PUBLIC[name]
    found = [use.idle_s, use.compute_s, use.exposed_communication_s + use.copy_s]
    assert [100 * part / use.wall_s for part in found] == pytest.approx([idle, compute, other], abs=within)
    assert (use.overlap_share is None) == (overlap is None)
    if overlap is not None:
        assert 100 * use.overlap_share == pytest.approx(overlap, abs=within)
