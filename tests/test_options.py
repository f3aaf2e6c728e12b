"""Ranges that fields of records of options have, and what is said of a value outside them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import msgspec
import pytest

from wirewise import options as opt
from wirewise.errors import InputError


class Inner(opt.Options, frozen=True, kw_only=True):
    depth: opt.Count = 1


class Record(opt.Options, frozen=True, kw_only=True):
    count: Annotated[opt.Count, opt.about("Number of things.", option="--number")] = 3
    share: opt.Share = 0.5
    chance: opt.Dropout = 0.0
    rate: opt.LearningRate = 0.1
    link: opt.Link = "1gbit"
    kind: Annotated[Literal["a", "b"], opt.about("Kind of thing.")] = "a"
    word: Annotated[str, opt.about("A word.", words={"x": 1, "y": 2})] = "x"
    names: opt.Distinct = ("p",)
    some: Annotated[tuple[str, ...], opt.about("Some words.", words=("x", "y"))] = ("x",)
    alphas: tuple[Annotated[float, opt.about(ge=0)], ...] = (0.1,)
    most: Annotated[opt.Count | None, opt.about("Largest number; by default any.")] = None
    file: Path | None = None
    links: opt.Links = msgspec.field(default_factory=dict)
    inner: Inner = Inner()
    plain: str = ""


FIELDS = {field.name: field for field in opt.fields_of(Record)}


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"count": 0}, "count is 0; expected at least 1"),
        ({"count": 1.5}, "count is 1.5; expected a whole number of 64 bits, at least 1"),
        ({"count": 2**63}, "count is 9223372036854775808; expected a whole number of 64 bits, at least 1"),
        ({"count": None}, "count is None; expected a whole number of 64 bits, at least 1"),
        ({"share": 1.5}, "share is 1.5; expected a number from 0 to 1"),
        ({"chance": 1.0}, "chance is 1.0; expected a number of at least 0 and below 1"),
        ({"rate": 0.0}, "rate is 0.0; expected a finite number above 0"),
        ({"rate": float("nan")}, "rate is nan; expected a finite number above 0"),
        ({"rate": float("inf")}, "rate is inf; expected a finite number above 0"),
        ({"link": "fast"}, "link: rate 'fast' is not understood; expected "),
        ({"kind": "c"}, "kind is 'c'; expected one of: a, b"),
        ({"word": "z"}, "word is 'z'; expected one of: x, y"),
        ({"names": ()}, r"names is \(\); expected at least one, each once"),
        ({"names": ("p", "p")}, r"names is \('p', 'p'\); expected at least one, each once"),
        ({"some": ("x", "z")}, r"some is \('x', 'z'\); expected some of: x, y"),
        ({"some": ()}, r"some is \(\); expected some of: x, y"),
        ({"alphas": (0.1, -1.0)}, r"alphas is \(0.1, -1.0\); expected at least 0"),
        ({"alphas": (float("inf"),)}, "alphas is "),
        ({"most": 0}, "most is 0; expected at least 1"),
        ({"plain": 3}, "plain is 3; expected <class 'str'>"),
    ],
)
def test_a_value_out_of_range_is_refused_with_name_value_and_range(given, told):
    with pytest.raises(InputError, match=f"^{told}"):
        Record(**given)
    with pytest.raises(TypeError, match="unknown"):
        Record(unknown=3)


def test_what_is_in_range_is_taken():
    Record(count=2**63 - 1, share=1, chance=0.99, link="5MB/s", names=("a", "b"), most=7, file=Path("x"))
    with pytest.raises(msgspec.ValidationError, match="`int` >= 1"):
        msgspec.json.decode('{"count": 0}', type=Record)


def test_what_a_field_says_of_itself():
    assert (FIELDS["count"].option, FIELDS["count"].description) == ("--number", "Number of things.")
    assert (FIELDS["most"].option, FIELDS["most"].kind, FIELDS["most"].optional) == ("--most", int, True)
    assert FIELDS["kind"].words == ("a", "b") and FIELDS["word"].words == ("x", "y")
    assert FIELDS["links"].default == {} and FIELDS["plain"].description == ""
    assert FIELDS["names"].several and not FIELDS["word"].several


def test_what_is_said_outside_goes_before_what_is_said_inside():
    field = opt.fields_of(
        msgspec.defstruct("One", [("seed", Annotated[opt.Seed, opt.about("Seed of lots.")])])
    )[0]
    assert (field.description, field.range, field.default) == (
        "Seed of lots.",
        "at least 0",
        msgspec.NODEFAULT,
    )


def test_outer_bounds_take_the_place_of_inner_ones():
    field = opt.fields_of(msgspec.defstruct("One", [("seed", Annotated[opt.Seed, opt.about(ge=3)])]))[0]
    assert field.range == "at least 3" and field.default is msgspec.NODEFAULT


def test_rates_of_single_hosts():
    opt.check_links({0: "1gbit", 1: "5mbit"}, 2)
    with pytest.raises(InputError, match="links name host 2; expected hosts 0 to 1"):
        opt.check_links({2: "1gbit"}, 2)
    with pytest.raises(InputError, match="rate 'fast'"):
        opt.check_links({0: "fast"}, 2)
