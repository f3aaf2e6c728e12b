"""Kernels of many libraries are known to communicate, and sums within one device are not."""

import pytest

from tests.trace.profiled import Profiled, info
from wirewise.trace import kineto, open_trace
from wirewise.trace.device_collectives import family_of_kernel, family_of_operator, may_communicate
from wirewise.trace.records import RankTrace

KERNELS = {
    "ncclDevKernel_AllReduce_Sum_bf16_NVLS(ncclDevKernelArgsStorage<4096ul>)": "NCCL",
    "ncclSymkDevKernel_AllReduce_AGxLLMC_R_f32": "NCCL",
    "rcclGenericKernel<1,false>(ncclDevComm*)": "NCCL",
    "mscclKernel_Sum_float_Simple_true(ncclDevComm*)": "NCCL",
    "void mscclpp::allreduce7<float>(...)": "MSCCL++",
    "void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>(c10::BFloat16*)": "symmetric memory",
    "multimem_one_shot_reduce_kernel<float, 4>": "symmetric memory",
    "void two_shot_all_reduce_kernel_inplace<c10::BFloat16, 16, 8>(c10::BFloat16**)": "symmetric memory",
    "void vllm::cross_device_reduce_2stage<__nv_bfloat16, 8>(vllm::RankData*)": "custom all-reduce",
    "void sglang::cross_device_reduce_1stage<__half, 8>(sglang::RankData*)": "custom all-reduce",
    "void aiter::reduce_scatter_cross_device_store<__hip_bfloat16, 8>": "custom all-reduce",
    "quickreduce::allreduce_prototype_twoshot<quickreduce::AllReduceTwoshot<...>>": "custom all-reduce",
    "tensorrt_llm::kernels::oneShotAllReduceKernel<__half, 8>": "TensorRT-LLM",
    "allreduce_fusion_kernel_oneshot_lamport<...>": "TensorRT-LLM",
    "userbuffers_fp16_sum_inplace_gpu_mc_rs<8>": "TensorRT-LLM",
    "nvshmemi_transfer_kernel": "NVSHMEM",
    "nvshmemx_barrier_all_on_stream_kernel": "NVSHMEM",
    "rocshmem_putmem_kernel": "NVSHMEM",
    "void deep_ep::internode_ll::dispatch<true, 3, 10, 7168>(...)": "DeepEP",
    "deep_ep::intranode::combine<__nv_bfloat16, 8, 768>": "DeepEP",
    "HcclAllReduceKernel": "other libraries",
    "hcom_broadcast__613_0": "other libraries",
    "void mori::moe::EpDispatchIntraNodeKernel<hip_bfloat16>": "other libraries",
    "uccl::internode_ll_send": "other libraries",
    "putmem_signal_nbi_block_wrapper": "NVSHMEM",
    "barrier_all_intra_node_kernel": "NVSHMEM",
    "moe_a2a_prepare_dispatch_kernel": "DeepEP",
    "vllm::all2all_v_kernel": "collectives by name",
    "my_lab_a2a_kernel": "collectives by name",
    "my_lab::fused_all_gather_kernel": "collectives by name",
}
LOCAL = [
    "ampere_sgemm_128x64_tn",
    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>",
    "void blockAllReduceSum<float>(float*)",
    "void oneflow::cuda::softmax::SoftmaxWarpAllReduce<float>",
    "triton_poi_fused_add_all_reduce_wait_tensor_3",
    "deep_ep::layout::get_dispatch_layout<8>",
    "void cub::DeviceReduceSingleTileKernel<...>",
    "void at::native::_scatter_gather_elementwise_kernel<128, 8>",
    "fsdp_all_gather_copy_in",
    "void memory_planner::copy_kernel<float>",
    "void outputmem_fill<float>",
]


@pytest.mark.parametrize(("name", "family"), KERNELS.items())
def test_a_kernel_that_communicates_by_its_name(name, family):
    assert family_of_kernel(name) == family


@pytest.mark.parametrize("name", LOCAL)
def test_a_kernel_of_one_device(name):
    assert not family_of_kernel(name) and not may_communicate(name)


@pytest.mark.parametrize(
    "name",
    [
        "c10d::allreduce_",
        "_c10d_functional::all_gather_into_tensor",
        "symm_mem::two_shot_all_reduce_",
        "vllm::all_reduce",
        "_C_custom_ar::all_reduce",
        "sgl_kernel::reg_all_gather",
        "deep_ep::dispatch",
    ],
)
def test_operators_that_communicate(name):
    assert family_of_operator(name)


@pytest.mark.parametrize(
    "name", ["aten::mm", "aten::scatter_add", "fsdp::all_gather_copy_in", "vllm::rms_norm"]
)
def test_operators_of_one_device(name):
    assert not family_of_operator(name)


def parts(rank: RankTrace) -> dict[str, str]:
    return {op.name: op.kind for op in rank.ops if op.stream}


def test_kernels_of_no_known_name_communicate_where_their_operator_does(tmp_path):
    made = Profiled(info(0, 1))
    made.step(0, 0, 1000)
    made.host("symm_mem::new_kind_of_reduce", 100, 100)
    made.kernel("kernel_of_today", 300, 50, launched=120)
    # Inside it, but of an operator of its own, and a copy.
    made.host("aten::copy_", 140, 20)
    made.kernel("vectorized_copy", 400, 50, launched=145)
    made.kernel("Memcpy DtoD (Device -> Device)", 500, 50, launched=170, cat="gpu_memcpy")
    made.host("aten::mm", 300, 50)
    made.kernel("gemm", 600, 50, launched=310)
    assert parts(kineto.read(made.write(tmp_path / "a.json"))) == {
        "kernel_of_today": "communication",
        "vectorized_copy": "other",
        "Memcpy DtoD (Device -> Device)": "other",
        "gemm": "other",
    }


def test_what_may_touch_several_devices_is_noted(tmp_path):
    made = Profiled(info(0, 2))
    made.step(0, 0, 1000)
    made.host("aten::mm", 0, 100)
    made.kernel("exchange_with_peer_over_nvlink", 200, 50, launched=10)
    made.kernel("Memcpy PtoP (Device -> Device)", 300, 50, launched=20, cat="gpu_memcpy")
    notes = " ".join(open_trace([made.write(tmp_path / "a.json")], partial=True).notes)
    assert "may communicate by their names and count as compute: 'exchange_with_peer_over_nvlink'" in notes
    assert "Memcpy PtoP" in notes


def test_collectives_in_other_words(tmp_path):
    made = Profiled(info(0, 1))
    made.step(0, 0, 1000)
    for at, name in enumerate(
        ["vllm::cross_device_reduce_1stage<half>", "deep_ep::internode_ll::combine<3>"]
    ):
        made.kernel(name, 100 * (at + 1), 50, launched=10 + at)
    found = [
        op.collective for op in kineto.read(made.write(tmp_path / "a.json")).ops if op.kind == "communication"
    ]
    assert found == ["all_reduce", "all_to_all"]
