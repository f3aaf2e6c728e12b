"""Verdicts on what bounds a step, from made and from public traces."""

import pytest

from tests.trace.profiled import Profiled, info
from wirewise.sim.bounds import HELPS, verdict_of
from wirewise.sim.usage import rank_uses
from wirewise.trace import open_trace


def uses_of(made, tmp_path):
    return rank_uses(open_trace([made.write(tmp_path / "trace.json")], partial=True))


def started(told=None):
    made = Profiled(told)
    made.step(0, 0, 1000)
    return made


def host_bound(made):
    made.host("aten::mm", 0, 1000)
    for at in range(0, 1000, 100):
        made.kernel("gemm", at + 20, 10, launched=at + 10)


def compute_bound(made):
    made.host("aten::mm", 0, 1000)
    made.kernel("gemm", 50, 900, launched=20)


def network_bound(made):
    made.host("aten::mm", 0, 1000)
    made.kernel("gemm", 50, 100, launched=20)
    made.older_collective("nccl:all_to_all", "ncclKernel_SendRecv", 150, 800, launched=30)


def copy_bound(made):
    made.host("aten::mm", 0, 1000)
    made.kernel("CopyHostToDevice", 50, 900, launched=20, cat="gpu_memcpy")


def launch_bound(made):
    made.host("aten::mm", 0, 100)
    for at in range(100, 1000, 20):
        made.kernel("relu", at, 2, launched=50)


def dependency_bound(made):
    made.host("aten::mm", 0, 1000)
    for at in (100, 500, 900):
        made.kernel("relu", at, 50, launched=50)


def unknown(made):
    made.host("Torch-Compiled Region: 0/0", 0, 10)
    made.kernel("triton_poi_fused_add_cos_sin_0", 8, 2, launched=5, runtime="cuda_driver")


def of_mtia(made):
    made.host("aten::mm", 0, 1000)
    made.kernel("fba_kernel", 50, 900, launched=20, cat="mtia_ccp_events", runtime="mtia_runtime")


def of_rocm(made):
    made.host("aten::mm", 0, 1000)
    for at in range(0, 1000, 100):
        made.kernel("Cijk_Ailk_Bljk_SB_MT32x32x16", at + 20, 10, launched=at + 10, stream=0)


BOUNDS = {
    host_bound: ("host", "The host bounds the step: ", "CUDA graphs"),
    compute_bound: ("compute", "Compute bounds the step: it fills 90 %", "fused kernels"),
    network_bound: ("network", "Communication bounds the step: ", "fewer bytes"),
    copy_bound: ("copies", "Copies bound the step: ", "pinned memory"),
    launch_bound: ("launch", "The start of kernels bounds the step: ", "fewer and larger kernels"),
    dependency_bound: ("dependency", "Dependencies bound the step: ", "events of other streams"),
    unknown: ("unknown", "Nothing recorded fills 99 % of 1.00 ms", "a recording"),
    of_mtia: ("compute", "Compute bounds the step: it fills 90 %", "fused kernels"),
    of_rocm: ("host", "The host bounds the step: ", "CUDA graphs"),
}


@pytest.mark.parametrize("shape", BOUNDS, ids=lambda shape: shape.__name__)
def test_what_bounds_a_step(shape, tmp_path):
    made = started(info(0, 4))
    shape(made)
    verdict = verdict_of(uses_of(made, tmp_path))
    bound, words, helps = BOUNDS[shape]
    assert verdict.bound == bound and verdict.sentence.startswith(words)
    assert HELPS[bound] in verdict.sentence and helps in verdict.sentence
    assert 0 < verdict.share <= 1


@pytest.mark.sweep(keep=2)
@pytest.mark.parametrize(
    ("name", "bound"),
    [
        ("triton_example_triton_example", "unknown"),
        ("critical_path_alexnet_benchmark_result_2869224_1695835535_trace", "host"),
        ("amd_trace_mi250_minitoy_train_ROCm6_2_kineto", "host"),
        ("mtia_inference_trace_mtia_inference_rank_0", "compute"),
        ("cpu_only_rank-34.Jul_15_10_52_41.1074.pt.trace", "network"),
    ],
)
def test_verdicts_on_public_traces(name, bound, wirewise_data):
    trace = open_trace([wirewise_data / "hta-traces" / f"{name}.json.gz"], partial=True)
    assert verdict_of(rank_uses(trace)).bound == bound
