"""Row `servers` (B5): an all-reduce in three phases over two servers of four hosts, and the bytes between them."""

import numpy as np
from jobs import MB, ms, run, saved

from common import scratch, verdict
from wirewise.collective import check, network
from wirewise.collective.bounds import bound
from wirewise.collective.builders import build
from wirewise.lab import Lab
from wirewise.planners.collective import CollectiveProblem, with_best_segments
from wirewise.planners.collective.blink import synthesize as blink
from wirewise.runtime.collective.defaults import default

SERVERS = (range(4), range(4, 8))


def servers(page, preset_):
    size = preset_["servers_mb"] * MB
    page.add(
        "## Three phases over two servers (B5)\n\nEight hosts, each a network namespace with a link of 400 Mbit/s to "
        "the switch of its server; the two switches are joined by one link of 200 Mbit/s each way. All-reduce of "
        f"{preset_['servers_mb']} MB of integers in float32; results are equal to gloo's, element by element. Bytes: "
        "of one call, counted by the kernel on the interface where a server's link begins, the larger of the two "
        "servers. They hold the headers of TCP, IP and Ethernet (66 bytes for each packet of up to 20 kB that passes "
        "here, as the kernel cuts none of them up) and the acknowledgements of what comes in. Payload: without, as "
        "the transport counts it. Limit: 2 M (n - 1) / n bytes a server, n = 2 servers. Bound: no algorithm is faster."
    )
    with Lab(8, "400mbit", servers=SERVERS, uplink="200mbit") as lab, scratch() as folder:
        made = network(lab.servers.topology(lab.rates))
        problem = CollectiveProblem(network=made, collective="all_reduce", size_bytes=size)
        programs = {
            "three phases": blink(problem, servers=SERVERS),
            "ring": build("all_reduce", "ring", 8),
            "group's default": default("all_reduce", 8, size),
        }
        programs["three phases"], _ = with_best_segments(programs["three phases"], made, size)
        for program in programs.values():
            check(program)
        files = {name: saved(folder, program, name) for name, program in programs.items()}
        found, crossed = measured(lab, {"programs": files, "size_bytes": size, "repeats": preset_["repeats"]})
        limit_s = bound(made, "all_reduce", size).seconds
    with page.table(
        "way", "segments", "bound ms", "ms", "MB left a server", "of them payload", "limit MB", "payload over limit",
        "on the interface over limit", "payload, claimed", "interface, claimed",
    ) as row:  # fmt: skip
        for name, seconds in found["seconds"].items():
            payload = max(found["payload"][name])
            over, on_wire = payload / size, crossed[name] / preset_["repeats"] / size
            due = name == "three phases"
            row(
                name, programs[name].segments if name in programs else "", *ms(limit_s, float(np.median(seconds))),
                f"{on_wire * size / MB:.3f}", f"{payload / MB:.3f}" if payload else "unknown", f"{size / MB:.3f}",
                f"{over:.4f}" if payload else "unknown", f"{on_wire:.4f}",
                verdict(over, most=1.0) if due else "none", verdict(on_wire, most=1.05) if due else "none",
            )  # fmt: skip


def measured(lab, job):
    """What servers_worker.py prints, and the bytes that left a server in all calls of each way."""
    readings = {}

    def hear(folder, line):
        word, _, mark = line.partition(" ")
        if word == "mark":
            readings[mark] = lab.uplink_counters()
            (folder / mark).touch()

    lines = run(lab, "servers_worker.py", job, hear)
    total = {"seconds": lines[0][-1]["seconds"], "payload": {}}
    for name in total["seconds"]:
        total["payload"][name] = [sum(lines[r][-1]["crossed"][name] for r in server) for server in SERVERS]
    crossed = {
        name: max(
            (after - before).tx_bytes
            for before, after in zip(readings[f"{name} before"], readings[f"{name} after"], strict=True)
        )
        for name in total["seconds"]
    }
    return total, crossed
