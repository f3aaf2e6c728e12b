"""Measured link rates of hosts outside a lab, with a rank on each: `-m wirewise.trials.link_rates`."""

from __future__ import annotations

import msgspec

from wirewise.cost.links import TCP_PAYLOAD
from wirewise.errors import PeerError
from wirewise.trials.last_words import last_lines
from wirewise.trials.log import LineReader, Report, write_line
from wirewise.trials.start import Hosts

__all__ = ["link_rates", "main"]

_TIMEOUT_S = 120.0


def link_rates(hosts: Hosts) -> tuple[str, ...]:
    """Measure the rate of each host's link; headers of TCP, IP and Ethernet are added to the payload rate.

    Args:
        hosts: Entered hosts of an allocation or of a lab.

    Raises:
        PeerError: A rank failed; the message quotes the end of its output.
    """
    reader, found = LineReader(), list[float]()

    def listener(_host: int, line: str) -> None:
        if isinstance(told := reader.read(line), Report):
            found[:] = msgspec.json.decode(told.record, type=list[float])

    result = hosts.run(["-m", __name__], launcher="direct", listener=listener, timeout_s=2 * _TIMEOUT_S)
    if not result.ok or len(found) != hosts.num_hosts:
        names = ", ".join(hosts.address(host) for host in range(hosts.num_hosts))
        words = last_lines([line for lines in result.tails for line in lines])
        raise PeerError(
            f"the links between {names} could not be measured: the ranks ended with exit code "
            f"{result.exit_code}, and said:\n{words}"
        )
    return tuple(f"{8e-6 * rate / TCP_PAYLOAD:.4g}mbit" for rate in found)


def main() -> None:
    """Measure as one rank; rank 0 reports to the parent."""
    # Both need torch, which takes seconds to import.
    from wirewise.profile.pairs import measure_rings
    from wirewise.trials.rank import join_job

    with join_job(_TIMEOUT_S) as transport:
        found = measure_rings()
    if not transport.rank:
        write_line(Report(msgspec.Raw(msgspec.json.encode(found.tolist()))))


if __name__ == "__main__":
    main()
