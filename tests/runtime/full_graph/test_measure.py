"""What rounds that load all channels at once tell of the links."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from wirewise.cost import LinkCost, Links
from wirewise.runtime.full_graph import measure

RANKS = 4
LINKS = Links.of_pairs(LinkCost(latency_s=1e-3, s_per_byte=1e-7), RANKS)


def loaded(monkeypatch: pytest.MonkeyPatch, more_s: float, longer: float, links: Links = LINKS) -> Links:
    """The links after rounds that take so much more, and so many times as long for each byte, on every rank."""
    ones = 1 - np.eye(RANKS, dtype=np.int64)

    def probe(transport, count, targets, sources):
        alone_s = links.wire_s(ones)[0]
        seconds = alone_s + more_s + longer * (links.wire_s(count * ones)[0] - alone_s)
        return dict.fromkeys(sources, seconds)

    monkeypatch.setattr(measure, "_probe", probe)
    transport = SimpleNamespace(world_size=RANKS, peers=(1, 2, 3), slowest=lambda own, what: np.array(own))
    return measure.measure_loaded(transport, links)


@pytest.mark.parametrize("more_s", [0.0, 0.005, 0.2])
@pytest.mark.parametrize("longer", [1.0, 1.3])
def test_what_a_round_takes_besides_its_bytes_does_not_lengthen_them(monkeypatch, more_s, longer):
    """Ranks that wake up late add the same to large and small exchanges; only a longer byte grows with them."""
    found = loaded(monkeypatch, more_s, longer)
    np.testing.assert_allclose(found.pairs.s_per_byte, longer * LINKS.pairs.s_per_byte, rtol=1e-6)
    off = ~np.eye(RANKS, dtype=bool)
    np.testing.assert_allclose(found.pairs.latency_s[off], 1e-3 + more_s, rtol=1e-3, atol=2e-6)
    assert not found.pairs.latency_s.diagonal().any()
    assert found.interface_bytes_per_s == pytest.approx(LINKS.interface_bytes_per_s / longer)


def test_links_are_never_taken_for_faster_than_they_were_alone(monkeypatch):
    found = loaded(monkeypatch, 0.0, 0.6)
    assert found.pairs.s_per_byte.tolist() == LINKS.pairs.s_per_byte.tolist()
    assert found.pairs.latency_s.min(initial=1.0, where=~np.eye(RANKS, dtype=bool)) >= 1e-3
