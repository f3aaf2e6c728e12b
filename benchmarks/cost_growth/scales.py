"""P5 and P6: traces of a million events, and queues of 100,000 jobs on 10,000 accelerators."""

import re
import subprocess
import sys
import time

import msgspec
import numpy as np
from queues import write_log
from traces import write_run

from common import scratch, verdict
from wirewise.planners.jobs.problem import plan_jobs, problem_of, simulate_rule
from wirewise.planners.jobs.rules import RULES, decide_once, expected_queue, knowledge, run_rule
from wirewise.plans import Bucket, FusionPlan
from wirewise.sim import predict
from wirewise.sim.jobs.engine import LOGGED, SLOT, WAITING, arrive, new_state
from wirewise.trace import EdgeCluster, rank_file, read_rank
from wirewise.trace.queue_logs import read_queue_log

GIGA = 1e9
CLUSTERS, OF_EACH = 10, 1024
"""Clusters, and accelerators of each: jobs run within one."""
DECISIONS = 20


def peak_of(*words):
    """What a command said, its seconds, and its peak of memory in bytes."""
    program = (
        "import resource, subprocess, sys; done = subprocess.run(sys.argv[1:], capture_output=True, text=True); "
        "print(done.stdout, done.stderr, sep='', end=''); "
        "print('PEAK', resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss); sys.exit(done.returncode)"
    )
    begin = time.perf_counter()
    command = [sys.executable, "-c", program, sys.executable, "-m", "wirewise", *map(str, words)]
    said = subprocess.run(command, check=True, capture_output=True, text=True, timeout=900).stdout
    seconds = time.perf_counter() - begin
    return said, seconds, 1024 * int(re.search(r"PEAK (\d+)$", said.strip())[1])


def traces_row(page, preset):
    """P5."""
    page.add(
        "## Long traces (P5)\n\nA run in the form in which `wirewise profile trace` writes it, drawn: forward and "
        "backward ops of a model's layers, gradient buckets, waits, optimizer. Whole commands, memory at its peak. "
        "All events are read and all clocks aligned; of more than 150,000 events, steps that are spread evenly over "
        "the run are replayed, and the commands say so."
    )
    titles = ("command", "events", "ranks", "steps replayed", "s", "GB")
    with scratch() as folder, page.table(*titles, "P5: s", "GB") as row:
        for number, (events, ranks) in enumerate(preset["traces"]):
            run, plan = folder / f"run-{number}", folder / f"plan-{number}.json"
            count = write_run(run, events, ranks)
            plan.write_text(plan_of_one_bucket(read_rank(rank_file(run, 0))).to_json())
            commands = {
                "trace show": ("trace", "show", run),
                "sim": ("sim", run),
                "sim --what-if bandwidth=*:x2": ("sim", run, "--what-if", "bandwidth=*:x2"),
                "sim --plan": ("sim", "--plan", plan, run),
            }
            for name, words in commands.items():
                said, seconds, peak = peak_of(*words)
                kept = re.search(r"(\d+ of \d+) steps are replayed", said)
                row(
                    name, f"{count:,}", ranks, kept[1] if kept else "all", f"{seconds:.1f}", f"{peak / GIGA:.2f}",
                    verdict(seconds, most=30.0), verdict(peak / GIGA, most=2.0),
                )  # fmt: skip


def plan_of_one_bucket(recorded):
    """All gradients of a rank's first step in one bucket."""
    sent = [op for op in recorded.ops if op.kind == "communication" and op.step == 0]
    names = tuple(name for op in sent for name in op.parameters)
    bucket = Bucket(
        parameters=names, size_bytes=sum(op.size_bytes for op in sent), codec="none", scheme="all_reduce"
    )
    return FusionPlan(
        world_size=recorded.header.world_size, planner="one bucket", buckets=(bucket,), predicted_step_s=0.0,
        baseline_step_s=0.0,
    )  # fmt: skip


def busiest_slot(state, arrays):
    """Slot in which most jobs are there."""
    change = np.zeros(int(state.finish.max()) + 2, np.int64)
    np.add.at(change, arrays.arrival, 1)
    np.add.at(change, state.finish, -1)
    return int(change.cumsum().argmax())


def decision(problem, rule, known, slot):
    """Seconds of a decision in a slot, median of some, jobs that wait before it, and jobs in all."""
    arrays, believed, number = problem.arrays, problem.believed, RULES.index(rule)
    state = new_state(arrays, 1)
    run_rule(number, arrays, believed, state, known, problem.kept, slot, 0)
    state.counts[SLOT] = slot
    arrive(arrays, state)
    seconds = []
    for _ in range(DECISIONS):
        copy = type(state)(*(one.copy() for one in state))
        begin = time.perf_counter()
        decide_once(number, believed, copy, known, 0)
        seconds.append(time.perf_counter() - begin)
    return float(np.median(seconds)), int(state.counts[WAITING])


def jobs_row(page, preset):
    """P6."""
    with scratch() as folder:
        jobs, accelerators = preset["jobs"], CLUSTERS * OF_EACH
        write_log(folder / "log.csv", jobs, accelerators, preset["load"])
        clusters = [EdgeCluster(name=f"c{n}", cpus=1, gpus=OF_EACH) for n in range(CLUSTERS)]
        begin = time.perf_counter()
        problem = problem_of(read_queue_log("helios", folder / "log.csv", clusters), kept=0.9)
        read_s = time.perf_counter() - begin
    known, arrays = knowledge(expected_queue(problem.arrays), problem.window), problem.arrays
    page.add(
        f"## Many jobs (P6)\n\n{jobs:,} jobs on {accelerators:,} accelerators in {CLUSTERS} clusters, slots of 60 s: a "
        f"log in the form of Helios, drawn to its published sizes and durations, that asks for {preset['load']:.0%} of "
        f"the accelerators while jobs arrive, with a day's swing. Read in {read_s:.1f} s. A plan is made with amounts "
        "tuned where the rule has some, and predicted from its allotments; compiled before. A decision is that of the "
        f"slot in which most jobs are there, median of {DECISIONS}."
    )
    titles = ("rule", "plan s", "predicted in s", "mean slots", "slots", "resizes", "waiting", "decision ms")
    with page.table(*titles, "P6: plan and prediction", "decision") as row:
        for rule in preset["rules"]:
            simulate_rule(problem_of(small(problem), kept=0.9), rule, known)
            begin = time.perf_counter()
            plan = plan_jobs(problem, rule)
            planned = time.perf_counter()
            predict(plan, problem.queue)
            predicted = time.perf_counter()
            state = simulate_rule(problem, rule, known)
            one, waiting = decision(problem, rule, known, busiest_slot(state, arrays))
            row(
                rule, f"{planned - begin:.2f}", f"{predicted - planned:.2f}",
                f"{float((state.finish - arrays.arrival).mean()):.1f}", f"{int(state.finish.max()):,}",
                f"{int(state.counts[LOGGED]) - len(arrays.arrival):,}", f"{waiting:,}", f"{1e3 * one:.2f}",
                verdict(predicted - begin, most=60.0), verdict(1e3 * one, most=10.0),
            )  # fmt: skip


def small(problem):
    """The first jobs, which everything is compiled with."""
    return msgspec.structs.replace(problem.queue, queue=problem.queue.queue[:50])
