"""One job and one kill under torchrun with checkpoints, under torchft and under wirewise, alternating.

    python benchmarks/recovery/against/run.py --preset smoke|paper [--out FILE.md] [--torchft PYTHON]

PYTHON is the interpreter of an environment that has torchft beside torch; without it that row is left out. Two ranks
of one machine, of which rank 1 is killed by SIGKILL in the middle; every turn runs each way once, one after the other.
"""

import difflib
import os
import signal
import statistics
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1])]

from common import Page, basic_parser, scratch, spread  # noqa: E402

PRESETS = {"smoke": (1, 62, 1_000_000), "paper": (3, 162, 1_000_000)}
"""Turns, step at which rank 1 is killed, half way between two checkpoints, and last step, which is not reached."""
MORE = 5
"""New steps of the new process after which a run is ended."""
EVERY = 25
"""Steps from one checkpoint to the next."""
LIMIT_S = 180.0
LIGHTHOUSE = """
import sys, time
from torchft.coordination import LighthouseServer
server = LighthouseServer(
    bind="127.0.0.1:0", min_replicas=1, join_timeout_ms=100, quorum_tick_ms=50, heartbeat_timeout_ms=1000
)
print(server.address(), flush=True)
sys.stdin.read()
"""


def torchrun(python, script, *arguments, ranks=2):
    return [
        python, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", "--max-restarts=10",
        "--monitor-interval=0.1", str(HERE / script), *arguments,
    ]  # fmt: skip


def by_dcp(folder, steps, python):
    return [(torchrun(sys.executable, "with_dcp.py", str(folder), str(steps), str(EVERY)), {})]


def by_torchft(folder, steps, python):
    return [
        (torchrun(python, "with_torchft.py", str(folder), str(steps), ranks=1),
         {"REPLICA_GROUP_ID": str(group), "NUM_REPLICA_GROUPS": "2"})
        for group in range(2)
    ]  # fmt: skip


def by_wirewise(folder, steps, python):
    command = [
        sys.executable,
        "-m",
        "wirewise",
        "recover",
        "--ranks-per-host",
        "2",
        "--out",
        str(folder / "logs"),
    ]
    return [([*command, "--", str(HERE / "with_wirewise.py"), str(folder), str(steps)], {})]


WAYS = {
    "torchrun and DCP": (by_dcp, "with_dcp.py"),
    "torchft": (by_torchft, "with_torchft.py"),
    "wirewise": (by_wirewise, "with_wirewise.py"),
}


def steps_of(folder, rank):
    """Number, time and process of each step of a rank."""
    path = folder / f"steps-{rank}"
    lines = path.read_text().splitlines() if path.exists() else []
    return [(int(n), float(at), int(pid)) for n, at, pid in (line.split() for line in lines)]


def one(way, folder, kill_step, steps, python):
    """Run a way with its kill; seconds of a step and to the next one of both, steps computed again or left out."""
    folder.mkdir()
    common = {**os.environ, "OMP_NUM_THREADS": "1"}
    if way is by_dcp:
        # torch 2.13's torchrun finds addresses of the earlier run when it starts ranks again; torchft needs its store.
        common["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    processes, lighthouse = [], None
    if way is by_torchft:
        lighthouse = subprocess.Popen(
            [python, "-c", LIGHTHOUSE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        common["TORCHFT_LIGHTHOUSE"] = lighthouse.stdout.readline().strip()
    try:
        with (folder / "output").open("wb") as output:
            for command, variables in way(folder, steps, python):
                processes.append(
                    subprocess.Popen(
                        command,
                        env={**common, **variables},
                        stdout=output,
                        stderr=output,
                        start_new_session=True,
                    )
                )
            until = time.monotonic() + LIMIT_S
            while len(steps_of(folder, 1)) < kill_step and time.monotonic() < until:
                time.sleep(0.01)
            before = {rank: steps_of(folder, rank) for rank in range(2)}
            killed_s = time.monotonic()
            os.kill(before[1][-1][2], signal.SIGKILL)
            reached, old = steps_of(folder, 0)[-1][0], before[1][-1][2]
            while time.monotonic() < until:
                if sum(n > reached and pid != old for n, _, pid in steps_of(folder, 1)) >= MORE:
                    break
                time.sleep(0.01)
    finally:
        for process in processes:
            # Ranks of torchrun have sessions of their own, and end by its hand.
            process.terminate()
        for process in processes:
            try:
                process.wait(40)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        if lighthouse is not None:
            lighthouse.communicate()
    return figures(folder, before, killed_s)


def figures(folder, before, killed_s):
    times = [at for _, at, _ in before[0]][20:]
    after = {rank: [line for line in steps_of(folder, rank) if line[1] > killed_s] for rank in range(2)}
    reached = max(n for n, at, _ in steps_of(folder, 0) if at <= killed_s)
    own = [n for n, at, _ in steps_of(folder, 1) if at <= killed_s]
    survivor = next(at for n, at, _ in after[0] if n > reached) - killed_s
    new = next(at for n, at, pid in after[1] if n > reached and pid != before[1][-1][2]) - killed_s
    again = len({n for n, _, _ in after[0] if n <= reached})
    first = min(n for n, _, _ in after[1])
    return {
        "step": statistics.median(b - a for a, b in pairwise(times)),
        "survivor": survivor,
        "new": new,
        "again": again,
        # Batches of the killed rank that nobody trains.
        "left out": max(first - max(own) - 1, 0),
    }


def changed_lines(script):
    """Lines that differ from the script without protection, comments and blank lines apart."""
    texts = [
        [line for line in (HERE / name).read_text().splitlines()[1:] if line.strip()]
        for name in ("plain.py", script)
    ]
    return sum(line[:2] in ("+ ", "- ") for line in difflib.ndiff(*texts))


def main():
    parser = basic_parser(__doc__)
    parser.add_argument("--torchft", metavar="PYTHON", help="Interpreter of an environment with torchft.")
    asked = parser.parse_args()
    turns, kill_step, steps = PRESETS[asked.preset]
    ways = {name: way for name, way in WAYS.items() if name != "torchft" or asked.torchft}
    found = {name: [] for name in ways}
    page = Page(
        "Recovery against torchft and torchrun",
        asked.preset,
        {"Ranks": "two processes of one machine, over loopback"},
    )
    with scratch() as folder:
        for turn in range(turns):
            for name, (way, _) in ways.items():
                found[name].append(
                    one(way, folder / f"{turn}-{name.split()[0]}", kill_step, steps, asked.torchft)
                )
    version = ""
    if asked.torchft:
        code = "from importlib.metadata import distributions as d\n" \
            "print(*{f'{x.name} {x.version}' for x in d() if x.name.startswith('torchft')})"  # fmt: skip
        version = subprocess.run([asked.torchft, "-c", code], capture_output=True, text=True).stdout.strip()
    torchft = version or "torchft: not tried"
    page.add(
        f"## One kill of two ranks\n\n{turns} turns, each way once a turn, 1.1 million parameters with AdamW, ended "
        f"{MORE} steps after the recovery; rank 1 is killed by SIGKILL after step {kill_step}. Checkpoints every "
        f"{EVERY} steps, written while training waits. {torchft}, a replica group for each rank under a torchrun of "
        "its own, with a heartbeat timeout of 1 s in place of 5. Medians, with quartiles in brackets. Seconds begin "
        "at the kill: to the next step of the rank that lives, which may be the one under way, and to the first one "
        "of the new process that goes beyond those made before. A step: without failures, before the kill. Lines: "
        "those of the script that differ from the same one without protection."
    )
    with page.table(
        "way", "next step of the other", "first new step", "steps computed again", "batches that nobody trained",
        "a step, ms", "lines",
    ) as row:  # fmt: skip
        for name, (_, script) in ways.items():
            of = {key: [turn[key] for turn in found[name]] for key in found[name][0]}
            row(
                name, spread(of["survivor"], digits=2), spread(of["new"], digits=2), spread(of["again"], digits=0),
                spread(of["left out"], digits=0), spread(of["step"], 1e3), changed_lines(script),
            )  # fmt: skip
    page.finish(asked)


if __name__ == "__main__":
    main()
