"""Names of collectives and sizes of tensors in files of torch.profiler."""

import pytest

from wirewise.trace.profiles import collective_name, tensor_bytes


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("c10d::_reduce_scatter_base_", "reduce_scatter"),
        ("ncclDevKernel_ReduceScatter_Sum", "reduce_scatter"),
        ("_allgather_base", "all_gather"),
        ("c10d::alltoall_base_", "all_to_all"),
        ("gloo:barrier", "barrier"),
        ("aten::linear", ""),
    ],
)
def test_names_of_collectives(text, name):
    assert collective_name(text) == name


def test_sizes_of_tensors_and_lists():
    assert tensor_bytes([3, 4], "float") == 48
    assert tensor_bytes([[3], [5]], "c10::BFloat16") == 16
    assert tensor_bytes([], "float") == 0
    assert tensor_bytes([3], "TensorList") == 0
