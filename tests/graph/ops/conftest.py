from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from wirewise.graph.ops import Csr


@pytest.fixture(params=["numba", "torch"])
def implementation(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def make_csr() -> Callable[..., Csr]:
    def make(rows: int, columns: int, density: float = 0.3, seed: int = 0, dtype: type = np.float64) -> Csr:
        rng = np.random.default_rng(seed)
        dense = (rng.random((rows, columns)) < density) * rng.normal(size=(rows, columns))
        return Csr.from_scipy(sp.csr_matrix(dense.astype(dtype)))

    return make


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)
