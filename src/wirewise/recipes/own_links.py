"""Jobs whose plans and predictions need the rates of links: those of a lab as they are shaped, others as measured."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from wirewise.options import Options
from wirewise.trials.link_rates import link_rates
from wirewise.trials.slurm import SlurmHosts
from wirewise.trials.start import choose_network
from wirewise.units import parse_rate

__all__ = ["settled"]

J = TypeVar("J", bound=Options)


def settled(job: J, hosts: int, say: Callable[[str], None]) -> J:
    """A job whose network is "lab" or "slurm", in an allocation with the measured rates of its hosts' links.

    Args:
        job: Record with `network`, and with `link`, `links` or both.
        hosts: Hosts that the job uses, the first ones of the allocation.
        say: Called with what was chosen and measured.

    Raises:
        InputError: The allocation was asked for, and there is none, or it has fewer hosts.
        PeerError: The links could not be measured.
    """
    fields: Any = job
    chosen, notes = choose_network(fields.network, loopback=False)
    for note in notes:
        say(note)
    found: dict[str, Any] = {"network": chosen}
    if chosen == "slurm":
        with SlurmHosts(hosts) as network:
            rates = link_rates(network)
        say(
            f"links as measured: {', '.join(f'{name} {rate}' for name, rate in zip(network.names, rates, strict=True))}"
        )
        if hasattr(fields, "link"):
            found["link"] = min(rates, key=parse_rate)
        if hasattr(fields, "links"):
            found["links"] = dict(enumerate(rates)) if isinstance(fields.links, dict) else rates
    return msgspec.structs.replace(job, **found)
