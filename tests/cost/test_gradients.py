"""Costs of groups of gradients."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

from wirewise import plans
from wirewise.codec.gradients import CODECS, Segments, make
from wirewise.cost.curve import Curve
from wirewise.cost.gradients import (
    MEASURED,
    V100,
    WIRES,
    CodecTimes,
    GradientCosts,
    _possible,
    group_costs,
    load_costs,
    payload,
    wire_bytes,
)
from wirewise.cost.links import Links
from wirewise.errors import InputError


@pytest.mark.parametrize(
    ("codec", "expected"),
    [
        ("none", 4000), ("fp16", 2000), ("bf16", 2000), ("topk", 80), ("dgc", 108), ("randomk", 40), ("efsign", 129),
        ("signsgd", 125), ("signum", 125), ("onebit", 133), ("qsgd", 1004), ("terngrad", 254), ("int8", 1008),
        ("int4", 508), ("powersgd", 1024),
    ],
)  # fmt: skip
def test_bytes_of_a_thousand_elements(codec, expected):
    assert wire_bytes(codec, 1000) == expected


@pytest.mark.parametrize("elements", [1, 7, 8, 9, 1000, 2**16 + 3])
def test_a1_bytes_are_those_of_the_codecs(elements):
    assert {"none", *CODECS} == set(WIRES)
    for name in CODECS:
        assert wire_bytes(name, elements) == make(name).size_bytes(Segments([elements]))


def test_factors_take_two_all_reduces_of_whole_groups():
    table = msgspec.structs.replace(
        V100, codecs={"powersgd": CodecTimes(((1.0, 1.0), (2.0, 2.0)), ((1.0, 1.0), (2.0, 2.0)))}
    )
    (cost,) = group_costs(table, "powersgd", Links.uniform(2, 1e9, ranks_per_host=2))
    assert cost.scheme == "all_reduce"
    sent_s = 2 * 3 / 4 * wire_bytes("powersgd", 2**20) / 1e9
    assert float(cost.communicate_s(2.0**20)) == pytest.approx(2 * V100.launch_s + sent_s)


def test_bytes_are_whole_and_close_to_the_payload():
    for codec in WIRES:
        for elements in (1, 7, 8, 9, 1000, 2**16 + 3, 2**20):
            found = wire_bytes(codec, elements)
            # Factors of small groups have whole sides, and DGC room for whole elements.
            assert abs(found - float(payload(codec)(elements))) <= 12 + 0.02 * found
    assert wire_bytes("topk", 5) == 8
    with pytest.raises(InputError, match="unknown gradient codec 'zip'"):
        wire_bytes("zip", 5)


def test_plans_know_the_same_schemes():
    assert plans.SCHEMES == (*MEASURED, "hierarchical")


def of(scheme, found):
    return next(cost for cost in found if cost.scheme == scheme)


class TestGroups:
    """Groups of x = 2^20 elements on 8 ranks at 1e9 bytes/s, 150 us a collective."""

    links, x = Links.uniform(8, 1e9), 2.0**20

    def test_uncompressed(self):
        (found,) = group_costs(V100, "none", self.links)
        assert found.scheme == "all_reduce" and float(found.encode_s(self.x) + found.decode_s(self.x)) == 0
        assert float(found.communicate_s(self.x)) == pytest.approx(150e-6 + 2 * 7 / 8 * 4 * self.x / 1e9)

    def test_all_ranks_payloads_are_decoded(self):
        found = of("all_gather", group_costs(V100, "efsign", self.links))
        assert float(found.encode_s(self.x)) == pytest.approx(130e-6)
        assert float(found.communicate_s(self.x)) == pytest.approx(150e-6 + 7 * (self.x / 8 + 4) / 1e9)
        assert float(found.decode_s(2 * self.x)) == pytest.approx(8 * 280e-6)
        sparse = of("all_gather", group_costs(V100, "dgc", self.links))
        assert float(sparse.decode_s(self.x)) == pytest.approx(34e-6)

    def test_divisible(self):
        found = of("divisible", group_costs(V100, "efsign", self.links))
        wire = 300e-6 + 2 * 7 / 8 * (self.x / 8 + 4) / 1e9
        assert float(found.communicate_s(self.x)) == pytest.approx(wire + 8 * 140e-6 + 130e-6)
        assert float(found.decode_s(16 * self.x)) == pytest.approx(2 * 8 * 140e-6)

    def test_linear_codecs_are_all_reduced(self):
        found = of("all_reduce", group_costs(V100, "fp16", self.links))
        assert float(found.communicate_s(self.x)) == pytest.approx(150e-6 + 2 * 7 / 8 * 2 * self.x / 1e9)
        assert float(found.decode_s(self.x)) == pytest.approx(22e-6)
        assert "all_reduce" not in {cost.scheme for cost in group_costs(V100, "efsign", self.links)}

    def test_hierarchical(self):
        links = Links.uniform(2, 1e9, ranks_per_host=4)
        found = of("hierarchical", group_costs(V100, "efsign", links))
        inside = 300e-6 + 2 * 4 * self.x * 3 / 4 / 50e9
        between = 150e-6 + 4 * (self.x / 4 / 8 + 4) / 1e9
        assert float(found.communicate_s(self.x)) == pytest.approx(inside + between + 2 * 140e-6)
        plain = of("hierarchical", group_costs(V100, "none", links))
        assert float(plain.communicate_s(self.x)) == pytest.approx(inside + 150e-6 + 2 / 2 * 4 * self.x / 1e9)


def measured(**changes):
    knots = ((1000.0, 1e-5), (1e6, 1e-3))
    times = CodecTimes(knots, knots, {4: ((1000.0, 2e-5), (1e6, 2e-3)), 8: ((1000.0, 4e-5), (1e6, 6e-3))})
    table = {"device": "cpu", "codecs": {"efsign": times}, "ranks": 4, "schemes": {"all_gather": knots}}
    return GradientCosts(**{**table, **changes})


class TestTables:
    def test_payloads_between_and_beyond_the_measured_counts(self):
        times = measured().codecs["efsign"]
        at = {n: float(times.decode_s(n)(1e6)) for n in (1, 2, 4, 6, 8, 10)}
        assert at == pytest.approx({1: 1e-3, 2: 4 / 3e3, 4: 2e-3, 6: 4e-3, 8: 6e-3, 10: 8e-3})
        alone = CodecTimes(times.encode, times.decode)
        assert float(alone.decode_s(5)(1e6)) == pytest.approx(5e-3)

    def test_a_file_reads_back(self, tmp_path):
        path = tmp_path / "costs.json"
        path.write_bytes(msgspec.json.encode(measured()))
        assert load_costs(path) == measured()
        assert load_costs("v100") is V100
        V100.check_itself()

    def test_measured_collectives_hold_for_their_ranks(self):
        (found,) = group_costs(measured(), "efsign", None, ranks=4)
        assert found.scheme == "all_gather"
        assert float(found.communicate_s(8e6)) == pytest.approx(
            float(Curve(((1e3, 1e-5), (1e6, 1e-3)))(1e6 + 4))
        )
        with pytest.raises(InputError, match="measured with 4 ranks, got 8"):
            group_costs(measured(), "efsign", None, ranks=8)
        with pytest.raises(InputError, match="no time of a collective is known for codec 'none'"):
            group_costs(measured(), "none", None, ranks=4)
        with pytest.raises(InputError, match=r"no times of codec 'topk' on cpu; the table has: none, efsign"):
            group_costs(measured(), "topk", None, ranks=4)

    def test_what_a_collective_takes_from_back_propagation_counts_as_computing(self):
        knots = ((0.0, 1e-3), (1e6, 3e-3))
        table = measured(
            schemes={"all_reduce": knots, "all_gather": knots, "divisible": knots},
            concurrent=((0, 1e-4), (1e6, 1e-3)),
        )
        delayed = msgspec.structs.replace(
            table, delays={"all_reduce": knots, "divisible": ((0, 0.0), (1e6, 1.0))}
        )
        for one, other in ((table, delayed), (table.without_codecs(), delayed.without_codecs())):
            for codec in ("none", "efsign"):
                before, after = (group_costs(costs, codec, None, ranks=4) for costs in (one, other))
                late = {
                    a.scheme: float(a.encode_s(8e4) - b.encode_s(8e4))
                    for a, b in zip(after, before, strict=True)
                }
                assert late == pytest.approx(
                    {"all_reduce": 1e-3 + 0.32 * 2e-3}
                    if codec == "none"
                    else {"all_gather": 0.0, "divisible": 0.010004}
                )
                assert all(a[3:] == b[3:] for a, b in zip(after, before, strict=True))

    @pytest.mark.parametrize(
        ("changes", "words"),
        [
            ({"launch_s": -1.0}, "launch_s is -1"),
            ({"ratio": 0.0}, "ratio is 0"),
            ({"schemes": {"ring": ((1.0, 1.0), (2.0, 2.0))}}, "scheme 'ring' is unknown"),
            ({"schemes": {"all_reduce": ((1.0, 1.0),)}}, r"schemes.all_reduce` has 1 sizes"),
            ({"delays": {"ring": ((1.0, 1.0), (2.0, 2.0))}}, "delaying scheme 'ring' is unknown"),
            ({"delays": {"all_reduce": ((1.0, 1.0),)}}, r"delays.all_reduce` has 1 sizes"),
            ({"codecs": {"zip": measured().codecs["efsign"]}}, "unknown gradient codec 'zip'"),
            (
                {"codecs": {"efsign": CodecTimes(((2.0, 1.0), (1.0, 1.0)), ((1.0, 1.0), (2.0, 1.0)))}},
                r"codecs.efsign.encode`: .*sizes that rise",
            ),
        ],
    )
    def test_wrong_tables_are_named(self, tmp_path, changes, words):
        path = tmp_path / "costs.json"
        path.write_bytes(msgspec.json.encode(measured(**changes)))
        with pytest.raises(InputError, match=rf"costs\.json: .*{words}"):
            load_costs(path)

    def test_a_missing_file_is_named(self, tmp_path):
        with pytest.raises(InputError, match=r"absent.*expected \"v100\""):
            load_costs(tmp_path / "absent")


RATE = np.full(2, 1e9)


@pytest.mark.parametrize(
    "wrong",
    [
        {"host_of_rank": np.zeros(1, np.int64)},
        {"host_of_rank": np.array([0, 0, 0, 0, 1, 1])},
        {"bandwidth_out_bytes_per_s": np.zeros(2)},
        {"bandwidth_out_bytes_per_s": np.full(2, np.inf), "bandwidth_in_bytes_per_s": np.full(2, np.inf)},
    ],
)
def test_wrong_links_are_refused(wrong):
    right = {"bandwidth_out_bytes_per_s": RATE, "bandwidth_in_bytes_per_s": RATE}
    right |= {"latency_s": np.zeros((2, 2)), "intra_bytes_per_s": np.full(2, np.inf)}
    with pytest.raises(InputError, match="expected"):
        group_costs(V100, "efsign", Links(**(right | wrong)))


def test_the_guide_names_the_schemes_of_all_codecs():
    guide = Path(__file__).parents[2] / "docs" / "howto" / "compress-gradients.md"
    rows = [
        line.strip("| ").split(" | ")
        for line in guide.read_text(encoding="utf-8").splitlines()
        if " | " in line
    ]
    told = {codec: row[3].split(", ") for row in rows if len(row) == 4 for codec in row[0].split(", ")}
    for codec in WIRES.keys() - {"none"}:
        assert told[f"`{codec}`"] == [f"`{scheme}`" for scheme in _possible(codec)]
