"""Which implementation serves a call."""

from __future__ import annotations

import pytest
import torch

from wirewise.errors import InputError
from wirewise.graph.ops import norm_act_drop


def test_numba_is_refused_off_the_cpu():
    with pytest.raises(InputError, match="numba kernels run on the CPU"):
        norm_act_drop(torch.zeros(3, 2, device="meta"), implementation="numba")
