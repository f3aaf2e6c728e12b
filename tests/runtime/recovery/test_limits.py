"""Waiting times: defaults in one place, ranges, names of options."""

from __future__ import annotations

import inspect

import pytest

from wirewise.errors import InputError
from wirewise.options import fields_of
from wirewise.runtime.recovery import Agent
from wirewise.runtime.recovery.limits import AgentLimits


def test_the_agent_has_each_limit_as_an_argument_with_the_same_default():
    defaults = inspect.signature(Agent).parameters
    for field in fields_of(AgentLimits):
        assert defaults[field.name].default == getattr(AgentLimits(), field.name), field.name
        assert "econds" in field.description


@pytest.mark.parametrize(
    "name", [field.name for field in fields_of(AgentLimits) if field.name != "progress_timeout_s"]
)
def test_limits_that_are_none_are_refused_by_name(name):
    for wrong in (0.0, -1.0, float("inf"), float("nan")):
        with pytest.raises(InputError, match=f"got {name} {wrong}"):
            Agent(print, ranks=1, **{name: wrong})


def test_no_progress_timeout_means_that_of_the_group_and_none_is_below_zero():
    Agent(print, ranks=1, progress_timeout_s=0.0)
    for wrong in (-1.0, float("inf")):
        with pytest.raises(InputError, match=f"got progress_timeout_s {wrong}"):
            Agent(print, ranks=1, progress_timeout_s=wrong)
