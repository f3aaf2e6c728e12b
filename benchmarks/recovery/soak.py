"""R14: kills in sequence, and whether processes, descriptors or shared memory grow with them or stay behind."""

import statistics
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path

from common import scratch, spread, verdict
from wirewise.trials.start import open_network
from wirewise_papers.swift.job import SwiftJob
from wirewise_papers.swift.ways import final_states, train_with_spares

_SHARED = Path("/dev/shm")
_LOOK_S = 0.5


def soak_row(page, preset):
    job = SwiftJob(link="10gbit", steps=100 * preset["soak"], width=32)
    kills = [(1.0 + 0.6 * n, n % job.hosts) for n in range(round(1.4 * preset["soak"]))]
    with scratch() as folder, open_network("lab", job.hosts, job.link) as network:
        before = held(network, job.hosts)
        with looking(network, job.hosts) as looks:
            found = train_with_spares(network, folder / "soak", job, kills=kills)
        states, after = final_states(folder / "soak", job), held(network, job.hosts)
    page.add(
        f"## Kills in sequence (R14)\n\n{job.hosts} hosts, one kill every 0.6 s of training, ranks in turn; a small "
        "model."
    )
    own = [one.recovered_s for one in found.survived]
    with page.table("kills", "left out", "to a new step", "replicas", "claim") as row:
        equal = len({one.digest for one in states}) == 1
        row(
            len(found.kills), found.spared, spread(own, 1, 3), "equal" if equal else "DIFFER",
            f"survived {len(own)}, {verdict(len(own), least=preset['soak'])}",
        )  # fmt: skip
    page.add(
        f"What the hosts held: medians of looks every {_LOOK_S:g} s in the first and in the last fifth of the time "
        "from the first to the last kill; descriptors are those of the processes that live all that time: agents, and "
        "those that start processes for them."
    )
    between = [seen for at_s, seen in looks if found.kills[0].at_s <= at_s <= found.kills[-1].at_s]
    lasting, fifth = set(between[0][1]) & set(between[-1][1]), max(1, len(between) // 5)
    with page.table("", "before", "first fifth", "last fifth", "after", "claim") as row:
        for place, name in enumerate(("processes", "descriptors", "shared files")):
            ends = [count(look, lasting)[place] for look in (before, after)]
            first, last = (
                statistics.median(count(look, lasting)[place] for look in some)
                for some in (between[:fifth], between[-fifth:])
            )
            # A process of a host may just end or start at any instant.
            row(
                name, ends[0], f"{first:g}", f"{last:g}", ends[1],
                f"grown by {last - first:g}, {verdict(last - first, most=job.hosts)}; left behind "
                + verdict(ends[1] - ends[0], most=0),
            )  # fmt: skip


def held(network, hosts):
    """Number of processes on the hosts, open descriptors by process, and files of recovery in shared memory."""
    descriptors = {}
    for pid in (pid for host in range(hosts) for pid in network.processes(host)):
        # It may have ended meanwhile.
        with suppress(OSError):
            descriptors[pid] = len(list(Path(f"/proc/{pid}/fd").iterdir()))
    ours = [path for path in _SHARED.glob("wirewise-recovery-*") if is_ours(path, descriptors)]
    return len(descriptors), descriptors, sum(1 + len(list(path.rglob("*"))) for path in ours)


def is_ours(path, pids):
    """Whether a folder of recovery is that of a process of the hosts, or its agent is gone."""
    pid = int(path.name.split("-")[2])
    return pid in pids or not Path(f"/proc/{pid}").exists()


def count(look, lasting):
    processes, descriptors, files = look
    return processes, sum(descriptors.get(pid, 0) for pid in lasting), files


@contextmanager
def looking(network, hosts):
    """A list that grows by the time and what the hosts hold, every half a second."""
    looks, ended = [], threading.Event()

    def look():
        while not ended.wait(_LOOK_S):
            looks.append((time.monotonic(), held(network, hosts)))

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield looks
    finally:
        ended.set()
        thread.join()
