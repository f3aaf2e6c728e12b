"""State goes through a file without code and comes back equal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from wirewise.cost import CodecCost, ExchangeCosts, LinkCost, Links, PairEstimator
from wirewise.runtime.full_graph.plain import from_plain, to_plain


def through_file(value: Any, path: Path) -> Any:
    torch.save(to_plain(value), path)
    return from_plain(torch.load(path, weights_only=True))


@pytest.mark.parametrize("dtype", ["u1", "i1", "i8", "f4", "f8", "?"])
def test_arrays_keep_type_shape_and_bits(dtype: str, tmp_path: Path) -> None:
    value = {("forward1", 2): np.arange(6).reshape(2, 3).T.astype(dtype), "none": np.zeros((0, 4), dtype)}
    found = through_file(value, tmp_path / "state")
    assert list(found) == list(value)
    for name, array in value.items():
        assert found[name].dtype == array.dtype and np.array_equal(found[name], array)
        assert found[name].flags.writeable


def test_records_come_back_as_they_were(tmp_path: Path) -> None:
    link = LinkCost(latency_s=1e-4, s_per_byte=1 / 3)
    online = PairEstimator({(1, 0): link})
    online.observe_round({(1, 0): 1e6}, {(1, 0): 0.3})
    costs = ExchangeCosts(
        links=Links.of_pairs(link, 2),
        codec=CodecCost(pack_s_per_value={8: 1e-9}),
        hidden_s={"a": np.ones(2)},
    )
    found_costs, found_online, nothing = through_file((costs, online, None), tmp_path / "state")
    assert nothing is None
    assert found_costs.codec == costs.codec
    assert np.array_equal(found_costs.links.pairs.s_per_byte, costs.links.pairs.s_per_byte)
    assert np.array_equal(found_costs.hidden("a"), np.ones(2))
    for table in (online, found_online):
        table.observe_round({(1, 0): 2e6}, {(1, 0): 0.9})
    assert found_online.costs() == online.costs() != {(1, 0): link}


def test_what_is_not_known_is_refused_when_it_is_saved() -> None:
    with pytest.raises(TypeError, match="cannot hold a PosixPath"):
        to_plain({"file": Path("x")})
