"""Ranges of wirewise lie in a profile of the user's, and nowhere else."""

import torch
from torch.profiler import ProfilerActivity, profile

from wirewise.runtime.ranges import profile_range


def test_a_profile_has_the_ranges() -> None:
    with profile_range("unseen"):
        torch.ones(2)
    with profile(activities=[ProfilerActivity.CPU]) as seen, profile_range("halo: send"):
        torch.ones(2)
    names = {event.name for event in seen.events()}
    assert "wirewise::halo: send" in names and "wirewise::unseen" not in names
