"""Stalls in words, and next to a replay."""

from __future__ import annotations

import pytest
from tests.papers.test_stalls import report

from wirewise.cost.stalls import Amount
from wirewise.errors import InputError
from wirewise.profile.stalls.report import reconcile


def test_the_sentence_names_the_largest_stall():
    assert report().sentence().startswith("The largest stall is the network between machines: 30000.0 ms")
    assert report(network=1.0).sentence().startswith("The largest stall is preparing data")
    assert "computes" in report(network=1.0, prep=1.0, fetch=1.0).sentence()


def test_disagreement_with_a_replay_is_named():
    gains = {
        "no_communication": Amount(29.0, (27.0, 32.0)),
        "instant_data": Amount(12.0, (11.0, 13.0)),
        "x": None,
    }
    network, data = reconcile(report(), gains)
    assert network.agree and network.measured.mean_s == 31.0
    assert network.measured.ci95_s == pytest.approx((31 - 8**0.5, 31 + 8**0.5))
    assert not data.agree and "DISAGREE" in data.sentence and data.stall == "prep and fetch"
    with pytest.raises(InputError, match="expected no_communication"):
        reconcile(report(), {})
