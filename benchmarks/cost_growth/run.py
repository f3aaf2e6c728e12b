"""Claims about how the cost of planning grows with the cluster: collectives, rules, long traces, many jobs.

    python benchmarks/cost_growth/run.py --preset smoke|paper [--out FILE.md] [--only ROW,...]

Rows: `collectives` (P2: seconds, memory and distance from the bound of `wirewise plan collective`, each in a process
of its own, for clusters of dgx-h100 machines; the time is that of the whole command), `rules` (P3: all-reduces of 4,096
ranks as rules, each in a process of its own: made, proved, simulated and written: the rule as JSON, and a Chakra trace
of each rank of one host), `predictions` (P4: a step of data-parallel training and an update of pipelines, each in a
process of its own, ranks that do the same simulated once, and up to 64 ranks each by itself too), `traces` (P5:
`wirewise trace show` and `sim` on a million events), `jobs` (P6: queues of 100,000 jobs on 10,000 accelerators under
every rule), `growth` (V1: the main operations at five sizes each, processor time and memory, each in a process of its
own, and the exponents fitted to them).

One process, one thread. The paper preset takes about five minutes; a JSON file beside the page keeps what was measured.
"""

import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import msgspec
from growth import OPERATIONS, growth_row
from scales import jobs_row, traces_row

from common import KeptFigures, Page, arguments, verdict
from wirewise.planners.jobs.rules import RULES

COLLECTIVES = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all")
MACHINES = {1: "dgx-h100", 16: "dgx-h100x16", 32: "dgx-h100x32", 128: "dgx-h100x128"}
PRESETS = {
    "smoke": {
        "machines": (2,),
        "collectives": ("all_gather",),
        "limit_s": 5,
        "hosts": 8,
        "predicted": (2,),
        "traces": ((2000, 2),),
        "jobs": 200,
        "load": 1.0,
        "rules": ("sjf",),
        "operations": ("inclusion probabilities",),
        "sizes": 3,
    },
    "paper": {
        "machines": (1, 16, 32, 128),
        "collectives": COLLECTIVES,
        "limit_s": 50,
        "hosts": 512,
        "predicted": (8, 32, 128, 512),
        "traces": ((100_000, 8), (1_000_000, 32)),
        "jobs": 100_000,
        "load": 1.2,
        "rules": RULES,
        "operations": tuple(OPERATIONS),
        "sizes": 5,
    },
}
GIGA = 1e9
SIZE = "1GB"


def plan(topology, collective, limit_s):
    """Record of the plan, seconds of the command, and its peak in bytes."""
    command = [sys.executable, "-m", "wirewise", "plan", "collective", "--topology", topology]
    command += ["--collective", collective, "--size", SIZE, "--time-limit", str(limit_s), "--json", "-"]
    begin = time.perf_counter()
    said = subprocess.run(command, check=True, capture_output=True, text=True, timeout=900).stdout
    return msgspec.json.decode(said), time.perf_counter() - begin


RULE = """
import json, resource, sys, tempfile, time
from pathlib import Path
from wirewise.collective import network
from wirewise.collective.check import check_regular
from wirewise.collective.exporters import chakra
from wirewise.collective.regular import regular
from wirewise.sim import simulate_program
from wirewise.topology import preset
laps = [time.perf_counter()]
lap = lambda: laps.append(time.perf_counter())
algorithm, hosts = sys.argv[1], int(sys.argv[2])
rule = regular("all_reduce", algorithm, 8 * hosts, period=8)
lap()
check_regular(rule)
lap()
graph = network(preset(f"dgx-h100x{hosts}"))
finish_s = simulate_program(rule, graph, 1e9).finish_s
lap()
with tempfile.TemporaryDirectory() as folder:
    (Path(folder) / "rule.json").write_text(rule.to_json())
    for rank in range(8):
        (Path(folder) / f"rank.{rank}.et").write_bytes(chakra.trace(chakra.nodes_of(rule, rank, 1e9)))
lap()
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
every = len(rule.rule.transfers) * hosts
print(json.dumps({"laps": laps, "peak_bytes": peak, "transfers": every, "finish_s": finish_s}))
"""


def ruled(algorithm, hosts):
    """Laps, peak in bytes, transfers and simulated seconds of a rule, and seconds of its process."""
    begin = time.perf_counter()
    command = [sys.executable, "-c", RULE, algorithm, str(hosts)]
    said = subprocess.run(command, check=True, capture_output=True, text=True, timeout=300).stdout
    return msgspec.json.decode(said), time.perf_counter() - begin


def rules_row(page, preset):
    kept = preset["kept"]
    titles = ("P3: ranks", "all-reduce", "transfers", "simulated, ms", "made, s", "proved, s", "simulated, s")
    with page.table(*titles, "written, s", "whole process, s", "GB", "reached: s", "GB") as row:
        hosts = preset["hosts"]
        for algorithm in ("ring", "hierarchical", "hierarchical_bruck"):
            key = f"rule {algorithm} {hosts}"
            if key not in kept:
                kept[key] = ruled(algorithm, hosts)
            found, seconds = kept[key]
            laps = [f"{b - a:.1f}" for a, b in zip(found["laps"], found["laps"][1:], strict=False)]
            peak = found["peak_bytes"] / GIGA
            cells = 8 * hosts, algorithm, f"{found['transfers']:,}", f"{1e3 * found['finish_s']:.2f}"
            judged = verdict(seconds, most=30.0), verdict(peak, most=4.0)
            row(*cells, *laps, f"{seconds:.1f}", f"{peak:.2f}", *judged)


def predicted(family, machines, *more):
    """What a prediction says, took and needed, and seconds of its process."""
    begin = time.perf_counter()
    command = [sys.executable, str(Path(__file__).with_name("predictions.py")), family, str(machines), *more]
    said = subprocess.run(command, check=True, capture_output=True, text=True, timeout=300).stdout
    return msgspec.json.decode(said), time.perf_counter() - begin


def predictions_row(page, preset):
    kept = preset["kept"]
    titles = ("P4: ranks", "family", "classes of ranks", "simulated, ms", "links, s", "predicted, s")
    with page.table(*titles, "whole process, s", "GB", "off one by one", "reached: s", "GB", "off") as row:
        for family in ("fusion", "stages"):
            for machines in preset["predicted"]:
                key = f"predict {family} {machines}"
                if key not in kept:
                    whole = predicted(family, machines, "whole")[0]["step_s"] if machines <= 8 else None
                    kept[key] = (*predicted(family, machines), whole)
                found, seconds, whole = kept[key]
                peak, off = found["peak_bytes"] / GIGA, whole and abs(found["step_s"] / whole - 1)
                cells = found["ranks"], family, found["classes"], f"{1e3 * found['step_s']:.2f}"
                told = f"{found['links_s']:.1f}", f"{found['predict_s']:.1f}", f"{seconds:.1f}", f"{peak:.2f}"
                judged = verdict(seconds, most=30.0), verdict(peak, most=4.0)
                last = ("-", "-") if off is None else (f"{off:.1e}", verdict(off, most=1e-9))
                row(*cells, *told, last[0], *judged, last[1])


def collectives_row(page, preset):
    kept = preset["kept"]
    page.add(f"Machines of 8 GPUs, 450 GB/s inside, 50 GB/s a GPU between them; {SIZE} a rank.")
    titles = ("P2: ranks", "collective", "algorithm", "classes of ranks", "s", "GB", "over the bound")
    with page.table(*titles, "reached: s", "GB", "bound") as row:
        for machines in preset["machines"]:
            for collective in preset["collectives"]:
                topology = MACHINES.get(machines, f"dgx-h100x{machines}")
                key = f"plan {topology} {collective} {preset['limit_s']}"
                if key not in kept:
                    kept[key] = plan(topology, collective, preset["limit_s"])
                found, seconds = kept[key]
                peak, over = found["peak_bytes"] / GIGA, found["predicted_s"] / found["bound_s"]
                cells = found["ranks"], collective, found["algorithm"], found["classes"]
                judged = (
                    verdict(seconds, most=2.0 if machines == 1 else 60.0),
                    verdict(peak, most=4.0),
                    verdict(over, most=1.05),
                )
                row(*cells, f"{seconds:.1f}", f"{peak:.2f}", f"{over:.3f}", *judged)


ROWS = {
    "collectives": collectives_row,
    "rules": rules_row,
    "predictions": predictions_row,
    "traces": traces_row,
    "jobs": jobs_row,
    "growth": growth_row,
}


def main():
    options = arguments(__doc__, tuple(ROWS))
    page = Page(
        "How the cost of planning grows", options.preset, {"Measured": "seconds, memory; simulated: plans"}
    )
    kept = KeptFigures(options.out and options.out.with_suffix(".json"))
    for name in options.only:
        ROWS[name](page, PRESETS[options.preset] | {"kept": kept})
    page.finish(options)


if __name__ == "__main__":
    main()
