"""Jobs of the rows: ranks on the hosts of a lab, and what they print."""

import json
import sys
from pathlib import Path

from common import scratch
from wirewise.collective import save

HERE = Path(__file__).resolve().parent
MB = 1 << 20


def run(lab, script, job, hear=None):
    """JSON lines that each rank prints; `hear(folder, line)` gets rank 0's other lines and the job's folder."""
    heard = [[] for _ in range(lab.num_hosts)]

    with scratch() as folder:

        def listen(host, line):
            if line.startswith("{"):
                heard[host].append(json.loads(line))
            elif host == 0 and hear is not None:
                hear(folder, line)

        (folder / "job.json").write_text(json.dumps(job))
        result = lab.run(
            [str(HERE / script), str(folder / "job.json")], launcher="direct", listener=listen, timeout_s=180
        )
    if not result.ok:
        sys.exit(f"{script} failed: {result.tails}")
    return heard


def saved(folder, program, name="program"):
    """Where a program was written to for the ranks."""
    path = folder / f"{name}.json"
    save(program, path)
    return str(path)


def ms(*seconds):
    return [f"{1e3 * one:.1f}" for one in seconds]
