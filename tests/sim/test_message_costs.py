"""Costs of messages from times of small collectives: what was simulated with some is found again."""

import msgspec
import pytest

from wirewise.collective import network
from wirewise.errors import InputError
from wirewise.sim.message_costs import PROBE_BYTES, fit_messages, probe_programs
from wirewise.sim.programs import simulate
from wirewise.topology import lab_hosts


def costing(message_s, processors, latency_s):
    made = lab_hosts(["1gbit"] * 4, latency_s=latency_s)
    hosts = tuple(msgspec.structs.replace(host, message_s=message_s) for host in made.hosts)
    return msgspec.structs.replace(made, hosts=hosts, processors=processors)


@pytest.mark.parametrize("processors", [1, 2])
@pytest.mark.parametrize(("message_s", "latency_s"), [(1e-4, 2e-5), (1e-5, 1e-4)])
def test_costs_are_found_again_with_a_constant_in_each_call(processors, message_s, latency_s):
    truth, programs = costing(message_s, processors, latency_s), probe_programs(4)
    call_s = 2e-4
    seconds = {n: simulate(p, network(truth), PROBE_BYTES).finish_s + call_s for n, p in programs.items()}
    # Half of a round trip is what a probe takes for a latency.
    probed = lab_hosts(["1gbit"] * 4, latency_s=latency_s + 2 * message_s)
    found = fit_messages(probed, programs, seconds, processors=(1, 2))
    # Where latencies hide them, one processor with cheap messages explains as much as two.
    if message_s > latency_s:
        assert found.processors == processors
        assert found.hosts[0].message_s == pytest.approx(message_s, rel=0.3)
    for name, program in programs.items():
        told = simulate(program, network(found), PROBE_BYTES).finish_s
        assert told == pytest.approx(seconds[name] - call_s, rel=0.15, abs=2e-5), name


def test_probes_differ_in_rounds_and_messages():
    programs = probe_programs(4)
    assert len({(p.steps, len(p.transfers)) for p in programs.values()}) >= 4
    assert all(len(p.transfers) <= 4000 for p in probe_programs(128).values()) and probe_programs(128)


def test_times_must_be_there():
    with pytest.raises(InputError, match="expected seconds above 0 for each of"):
        fit_messages(lab_hosts(["1gbit"] * 4), probe_programs(4), {"ring": 0.0})
