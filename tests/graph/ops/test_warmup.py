from __future__ import annotations

import torch

from wirewise.graph.ops import dense_kernels, sparse_kernels, warm


def test_warm_compiles_each_kernel_once_a_precision():
    warm()
    warm(torch.float64)
    kernels = [
        *(getattr(sparse_kernels, n) for n in sparse_kernels.__all__),
        *(getattr(dense_kernels, n) for n in dense_kernels.__all__),
    ]
    assert len(kernels) == 4
    assert [len(k.signatures) for k in kernels] == [2] * 4
