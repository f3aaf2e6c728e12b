"""The choice of machines."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from wirewise.cost.instances import Instance, Prices, Workload, choose, load_prices
from wirewise.errors import InputError

SAMPLE = Path(__file__).parents[2] / "examples" / "prices.toml"


WORK = Workload(
    samples=1000,
    batch=10,
    compute_s=0.1,
    data_s=0.02,
    interconnect_s=0.01,
    gradient_bytes=9.57e6,
    hidden_s=0.05,
)


def test_a_step_elsewhere():
    slow = Instance(name="a", price_per_hour=1.0, link="100mbit")
    assert WORK.step_s(slow, 1) == pytest.approx(0.12)
    # 9.57 MB at 0.957 of 12.5 MB/s: 0.8 s on two ranks, 1.2 s on four.
    assert WORK.step_s(slow, 2) == pytest.approx(0.12 + 0.8 - 0.05)
    assert WORK.step_s(slow, 4) == pytest.approx(0.12 + 1.2 - 0.05)
    fast = Instance(name="b", price_per_hour=1.0, speed=2.0, accelerators=2, link="100gbit")
    assert WORK.step_s(fast, 1) == pytest.approx(0.05 + 0.01 + 0.02)
    assert WORK.step_s(fast, 2) == pytest.approx(0.07)


def test_the_cheapest_within_the_budget_stands_first():
    prices = Prices(
        date="2026-01-01",
        instance=[
            Instance(name="slow", price_per_hour=1.0, link="1gbit", counts=[1, 2]),
            Instance(name="fast", price_per_hour=3.0, link="1gbit", speed=2.0, counts=[1, 2]),
        ],
    )
    free = choose(prices, WORK)
    assert [c.cost for c in free] == sorted(c.cost for c in free)
    assert (free[0].instance, free[0].count) == ("slow", 1)
    assert free[0].time_s == pytest.approx(100 * 0.12)
    bound = choose(prices, WORK, budget_s=8.0)
    assert (bound[0].instance, bound[0].count) == ("slow", 2)
    tight = choose(prices, WORK, budget_s=6.5)
    assert (tight[0].instance, tight[0].count) == ("fast", 2) and tight[0].within_budget
    assert not any(c.within_budget for c in choose(prices, WORK, budget_s=1.0))
    with pytest.raises(InputError, match="budget"):
        choose(prices, WORK, budget_s=0.0)


def test_the_sample_list_is_an_example_with_its_day():
    found = load_prices(SAMPLE)
    assert found.date == "2026-11-01" and "not an offer" in found.note
    assert all(math.isfinite(i.price_per_hour) for i in found.instance)


@pytest.mark.parametrize(
    "text",
    [
        'date = "2026-01-01"\n',
        '[[instance]]\nname = "a"\nprice_per_hour = 1.0\n',
        'date = 2026-01-01\n[[instance]]\nname = "a"\nprice_per_hour = -1.0\n',
        'date = 2026-01-01\n[[instance]]\nname = "a"\nprice_per_hour = 1.0\ncolour = "red"\n',
        'date = 2026-01-01\n[[instance]]\nname = "a"\nprice_per_hour = 1.0\nlink = "fast"\n',
        "date = ",
    ],
)
def test_lists_that_cannot_be_used_are_named(text, tmp_path):
    (tmp_path / "prices.toml").write_text(text)
    with pytest.raises(InputError, match=r"expected|lacks"):
        load_prices(tmp_path / "prices.toml")
