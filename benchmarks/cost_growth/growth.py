"""V1: how time and memory of the main operations grow.

python benchmarks/cost_growth/growth.py OPERATION SIZE...     (one measurement a size, as JSON)
python benchmarks/cost_growth/growth.py --counted [OPERATION...]     (exponents of work, as they are recorded)
"""

import ctypes
import gc
import json
import subprocess
import sys
import tempfile
import time
import tracemalloc
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
from operations import EVENTS_AN_ACCELERATOR, HOSTS, JOBS_AN_ACCELERATOR, NODES_A_HOST, OPERATIONS
from scipy import stats

from common import verdict
from wirewise.memory import peak_resident_bytes, resident_bytes

ROOM_BYTES = 24 * 2**30
"""Memory of the machine for which the largest size is told."""
RISE = 0.25
"""How far an exponent may be above its law, or above the recorded one."""
TURNS = 4
LEAST = {"seconds": 0.0, "bytes": 2**20}
"""Below it a figure says nothing of growth: memory is counted in pages, and taken in arenas."""
GIGA = 1e9


def measured(name, size):
    """Seconds of processor time, and bytes at the peak above those of an idle process, of an own process."""
    command = [sys.executable, __file__, name, str(size)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    if done.returncode:
        raise SystemExit(f"{name} at {size} failed: {done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def measure(name, size):
    """What `measured` gives, in this process; the least size comes first, so that all is imported and compiled."""
    operation = OPERATIONS[name]
    with tempfile.TemporaryDirectory(prefix="wirewise-growth-") as folder:
        run = prepared(operation, operation.sizes[0], Path(folder) / "first")
        run()
        del run
        trim()
        idle = resident_bytes()
        run = prepared(operation, size, Path(folder) / "own")
        trim()
        # The kernel's own peak begins here.
        Path("/proc/self/clear_refs").write_text("5")
        begin = time.process_time()
        result = run()
        seconds = time.process_time() - begin
        del result
        return {"seconds": seconds, "bytes": max(peak_resident_bytes() - idle, 0), "idle": idle}


def prepared(operation, size, folder):
    folder.mkdir()
    return operation.prepare(size, folder)


def trim():
    """Give freed memory back, so that it does not count."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)


def counted(run):
    """Calls of functions from Python and bytes allocated at the peak: the same in every run on a busy machine too."""
    calls = 0

    def called(frame, event, argument):
        nonlocal calls
        calls += event in ("call", "c_call")

    gc.collect()
    sys.setprofile(called)
    try:
        run()
    finally:
        sys.setprofile(None)
    tracemalloc.start()
    try:
        run()
        return calls, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def exponents(name):
    """Exponents of calls, allocated memory and processor time between the two sizes at which work is counted.

    Compiled kernels call nothing and do not allocate, so that theirs is the processor time: waiting does not count in
    it, and the least of several turns, in which both sizes take part, hardly has what a busy machine adds.
    """
    operation = OPERATIONS[name]
    with tempfile.TemporaryDirectory(prefix="wirewise-growth-") as folder:
        runs = [prepared(operation, size, Path(folder) / str(size)) for size in operation.counted]
        runs[0]()
        figures = [counted(run) for run in runs]
        calls, allocated = (exponent(operation.counted, pair) for pair in zip(*figures, strict=True))
        if operation.recorded.seconds is None:
            return calls, allocated, None
        return calls, allocated, exponent(operation.counted, least_seconds(runs))


def least_seconds(runs):
    """Least processor time of each, over turns in which all take part."""
    turns = []
    for _ in range(TURNS):
        turns.append([])
        for run in runs:
            begin = time.process_time()
            run()
            turns[-1].append(time.process_time() - begin)
    return np.min(turns, axis=0)


def exponent(sizes, values):
    """Power of the size by which a value grows between two of them."""
    return float(np.log(values[1] / values[0]) / np.log(sizes[1] / sizes[0]))


def fitted(sizes, values):
    """Exponent of a power of the size over all sizes, and half of its 95 % interval."""
    found = stats.linregress(np.log(sizes), np.log(values))
    return float(found.slope), float(stats.t.ppf(0.975, len(sizes) - 2) * found.stderr)


def growth_row(page, preset):
    """V1."""
    page.add(
        "## Main operations (V1)\n\nEach size in a process of its own, in which the least size was carried out before: "
        "processor time of all threads, and memory at the peak above that of the idle process, so that the operation's "
        "input counts. Collectives of 1 GB on machines of eight accelerators, graphs of 32 stored edges a node and "
        "eight features, four parts, batches of 32 of one node in eight."
    )
    found = {name: {} for name in preset["operations"]}
    with page.table("operation", "size", "s", "GB") as row:
        for name, sizes in found.items():
            operation = OPERATIONS[name]
            for size in operation.sizes[: preset["sizes"]]:
                key = f"{name} {size}"
                if key not in preset["kept"]:
                    preset["kept"][key] = measured(name, size)
                sizes[size] = preset["kept"][key]
                cells = f"{sizes[size]['seconds']:.3g}", f"{sizes[size]['bytes'] / GIGA:.3g}"
                row(name, f"{size:,} {operation.unit}", *cells)
    page.add(
        "Exponents of a power of the size, fitted to all sizes, with 95 % intervals, next to the law of the operation; "
        "and of the last step alone, from the fourth size to the fifth. Memory below 1 MiB, which pages and arenas "
        "blur, is left out of the fit where three sizes have more. The rest was not measured: it is extrapolated "
        "from the largest size by the larger of the two exponents. The size that fits 24 GiB, and what a job on "
        f"{HOSTS:,} hosts of eight accelerators costs ({NODES_A_HOST:,} nodes a host; {EVENTS_AN_ACCELERATOR:,} events "
        f"and {JOBS_AN_ACCELERATOR} jobs an accelerator)."
    )
    titles = (
        "operation",
        "law",
        "exponent of time",
        "last step",
        "of memory",
        "last step",
        "fits 24 GiB, extrapolated",
    )
    with page.table(*titles, f"{HOSTS:,} hosts, extrapolated", "V1: time", "memory") as row:
        for name, sizes in found.items():
            if len(sizes) > 2:
                row(name, *told(OPERATIONS[name], sizes))


def told(operation, found):
    """Cells of an operation: exponents, the largest size, the cost of 1,024 hosts, and whether the law holds."""
    sizes, cells, steep = list(found), [f"{operation.law:g}"], {}
    for what, least in LEAST.items():
        known = {size: one[what] for size, one in found.items() if one[what] >= least}
        if len(known) < 3:
            known = {size: max(one[what], 1e-6) for size, one in found.items()}
        slope, half = fitted(list(known), list(known.values()))
        last = exponent(sizes[-2:], list(known.values())[-2:])
        cells += [f"{slope:.2f} ± {half:.2f}", f"{last:.2f}"]
        steep[what] = max(slope, last), known[sizes[-1]], verdict(slope, most=operation.law + RISE)
    (rate, seconds, time_holds), (power, bytes_, memory_holds) = steep.values()
    fits = sizes[-1] * ((ROOM_BYTES - found[sizes[-1]]["idle"]) / bytes_) ** (1 / max(power, 0.05))
    cells.append(f"{fits:.2g} {operation.unit}" if fits < 1e12 else "memory hardly grows")
    if operation.of_hosts is None:
        cells.append("does not depend on hosts")
    else:
        factor = operation.of_hosts / sizes[-1]
        costs = f"{seconds * factor**rate:.2g} s, {bytes_ * factor ** max(power, 0) / GIGA:.2g} GB"
        cells.append(f"{operation.of_hosts:,} {operation.unit}: {costs}")
    return *cells, time_holds, memory_holds


def main():
    first, *others = sys.argv[1:]
    if first == "--counted":
        for name in others or [name for name, one in OPERATIONS.items() if one.counted]:
            begin = time.process_time()
            print(
                name,
                [one and round(one, 2) for one in exponents(name)],
                f"{time.process_time() - begin:.1f} s",
                flush=True,
            )
    else:
        for size in others:
            print(json.dumps(measure(first, int(size))), flush=True)


if __name__ == "__main__":
    main()
