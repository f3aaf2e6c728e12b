"""Link rates of jobs whose plans and predictions need them: as shaped in a lab, else as measured."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from wirewise.hosts.slurm import SlurmHosts
from wirewise.options import Options
from wirewise.trials.link_rates import link_rates
from wirewise.trials.start import choose_network
from wirewise.units import parse_rate

__all__ = ["resolve_links"]

J = TypeVar("J", bound=Options)


def resolve_links(job: J, hosts: int, log: Callable[[str], None]) -> J:
    """Resolve a job's network to "lab" or "slurm", in an allocation with measured link rates.

    Args:
        job: Record with `network`, and with `link`, `links` or both.
        hosts: Hosts that the job uses, the first ones of the allocation.
        log: Called with progress messages.

    Raises:
        InputError: "slurm" was requested without an allocation, or with one of fewer hosts.
        PeerError: The links could not be measured.
    """
    fields: Any = job
    chosen, notes = choose_network(fields.network, loopback=False)
    for note in notes:
        log(note)
    found: dict[str, Any] = {"network": chosen}
    if chosen == "slurm":
        with SlurmHosts(hosts) as network:
            rates = link_rates(network)
        log(
            f"links as measured: {', '.join(f'{name} {rate}' for name, rate in zip(network.names, rates, strict=True))}"
        )
        if hasattr(fields, "link"):
            found["link"] = min(rates, key=parse_rate)
        if hasattr(fields, "links"):
            found["links"] = dict(enumerate(rates)) if isinstance(fields.links, dict) else rates
    return msgspec.structs.replace(job, **found)
