"""Modules by name and their sources, whatever says which modules there are."""

from __future__ import annotations

import pytest
from torch import nn

from wirewise.errors import InputError
from wirewise.trace.layers import layer_sources, named_layers

ONE, OTHER = nn.Linear(2, 2), nn.Tanh()


@pytest.mark.parametrize(
    ("modules", "names"),
    [
        (nn.Sequential(ONE, OTHER, ONE), "012"),
        (nn.ModuleList([ONE, ONE]), "01"),
        ([ONE, OTHER, ONE], "012"),
        (nn.ModuleDict({"a": ONE, "b": OTHER, "c": ONE}), "abc"),
        ({"a": ONE, "b": ONE}, "ab"),
    ],
)
def test_a_module_that_stands_twice_has_two_names(modules, names):
    found = named_layers(modules)
    assert "".join(found) == names and all(one in (ONE, OTHER) for one in found.values())


@pytest.mark.parametrize(
    ("modules", "said"),
    [
        (ONE, "got a Linear with a forward pass of its own; expected a list of modules"),
        (3, "got a int; expected a list of modules"),
        ([], "expected at least one"),
        (["a"], "each an nn.Module"),
        ({"input": ONE}, "none of them named 'input'"),
    ],
)
def test_what_is_no_list_of_modules_is_refused(modules, said):
    with pytest.raises(InputError, match=said):
        named_layers(modules)


def test_sources_are_those_before_unless_said_otherwise():
    assert layer_sources("abc", {"c": ["a", "b"]}) == {"a": ("input",), "b": ("a",), "c": ("a", "b")}
