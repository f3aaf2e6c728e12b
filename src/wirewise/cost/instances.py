"""Predicted stalls on other machines, and the cheapest machines within a time budget.

Source: Stash (ICDCS 2023; arXiv 2208.14344), the recommendation.
"""

from __future__ import annotations

import math
import os
import tomllib
from pathlib import Path

import msgspec

from wirewise.cost.links import TCP_PAYLOAD
from wirewise.errors import InputError
from wirewise.units import parse_rate

__all__ = ["Choice", "Instance", "Prices", "Workload", "choose", "load_prices"]


class Instance(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Machine type for rent."""

    name: str
    price_per_hour: float
    accelerators: int = 1
    link: str | float = "10gbit"
    """Rate of its network link."""
    interconnect: str | float | None = None
    """Rate between its accelerators. Defaults to that of the measured machine."""
    speed: float = 1.0
    """Speed of its accelerator, as a multiple of the measured one."""
    counts: list[int] = msgspec.field(default_factory=lambda: [1])
    """Numbers of machines that may be rented."""


class Prices(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A user's price list, with its date."""

    date: str
    instance: list[Instance]
    currency: str = "USD"
    note: str = ""


def load_prices(path: str | os.PathLike[str]) -> Prices:
    """Read a price list in TOML.

    Raises:
        InputError: The file is unreadable, has unknown fields, or a number in it is invalid.
    """
    try:
        content = tomllib.loads(Path(path).read_text(encoding="utf-8"))
        # A TOML date is no string; a list may write it either way.
        found = msgspec.convert(content | {"date": str(content.get("date", ""))}, Prices)
    except (OSError, ValueError, RecursionError, OverflowError) as error:
        raise InputError(
            f"price file {os.fspath(path)} cannot be used: {error}; expected date and [[instance]] tables "
            "with name and price_per_hour"
        ) from error
    if not found.date or not found.instance:
        raise InputError(f"price file {os.fspath(path)} lacks a date or instances; prices are true on a day")
    for i in found.instance:
        numbers = (i.price_per_hour, i.accelerators, i.speed, *i.counts)
        if not i.counts or not all(0 < n < math.inf for n in numbers):
            raise InputError(
                f"instance {i.name!r} has price, accelerators, speed or counts of {numbers}; expected "
                "finite numbers above 0"
            )
        parse_rate(i.link)
    return found


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """Training job, and the measurements of its step."""

    samples: float
    """Total number of training samples."""
    batch: float
    """Samples per rank and step."""
    compute_s: float
    data_s: float
    """Prep and fetch stalls of a step; assumed equal on all machines."""
    interconnect_s: float
    """Interconnect stall of a step on one machine."""
    gradient_bytes: float
    reductions: float = 1.0
    s_per_reduction: float = 0.0
    hidden_s: float = 0.0
    """Seconds of communication per step hidden behind compute."""

    def step_s(self, instance: Instance, count: int) -> float:
        """Predicted step time on `count` machines, with a ring through all of them, in seconds.

        compute/speed + max(0, ring - hidden/speed) + data.
        """
        ranks = instance.accelerators * count
        rate = instance.link if count > 1 else instance.interconnect
        if ranks == 1:
            stall = 0.0
        elif rate is None:
            stall = self.interconnect_s
        else:
            stall = max(0.0, self.ring_s(parse_rate(rate), ranks) - self.hidden_s / instance.speed)
        return self.compute_s / instance.speed + stall + self.data_s

    def ring_s(self, bytes_per_s: float, ranks: int) -> float:
        """Seconds to all-reduce the gradients on a ring: each link carries 2 (n-1)/n of their bytes."""
        carried = 2 * (ranks - 1) / ranks * self.gradient_bytes
        return carried / (bytes_per_s * TCP_PAYLOAD) + self.reductions * self.s_per_reduction

    def hiding(self, hidden_s: float) -> Workload:
        """Job whose compute hides `hidden_s` seconds of its communication."""
        return msgspec.structs.replace(self, hidden_s=hidden_s)


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """Number of machines of one type for the whole job."""

    instance: str
    count: int
    step_s: float
    time_s: float
    cost: float
    within_budget: bool


def choose(prices: Prices, workload: Workload, budget_s: float = math.inf) -> list[Choice]:
    """List all choices, those within the time budget first, then by price.

    Raises:
        InputError: The budget is not above 0.
    """
    if not budget_s > 0:
        raise InputError(f"got a budget of {budget_s} s; expected a time above 0")
    found = []
    for instance in prices.instance:
        for count in instance.counts:
            step = workload.step_s(instance, count)
            steps = math.ceil(workload.samples / (workload.batch * instance.accelerators * count))
            time = steps * step
            cost = time / 3600 * instance.price_per_hour * count
            found.append(
                Choice(
                    instance=instance.name,
                    count=count,
                    step_s=step,
                    time_s=time,
                    cost=cost,
                    within_budget=time <= budget_s,
                )
            )
    return sorted(found, key=lambda c: (not c.within_budget, c.cost, c.time_s))
