"""Whatever is in a file, its reader returns or raises an error of wirewise: soon, and in little memory."""

from __future__ import annotations

import json
import random
import resource
import shutil
import signal
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pytest
import torch
from benchmarks.random_steps import random_step

from tests.cli.bad_input import GOOD_GRAPH, GOOD_TOPOLOGY
from tests.conformance.test_plan_laws import EXAMPLES
from tests.fuzz.mutants import archived, mutant
from tests.harness.tiers import EXHAUSTIVE
from tests.papers.test_stalls import report
from tests.planners.pipeline.problems import random_trace
from tests.trace.profiled import Profiled, info
from tests.trace.synthetic import make
from tests.trace.test_operator_graph import GOOD
from tests.trace.test_queue_logs import HELIOS, PHILLY, ROOM
from tests.trace.test_tasks import change
from wirewise import collective, graph, plans, topology
from wirewise.cli.msccl import File
from wirewise.collective.builders import build
from wirewise.collective.exporters import msccl, mscclpp, mscclpp_plan
from wirewise.cost.gradients import CodecTimes, GradientCosts, load_costs
from wirewise.cost.instances import load_prices
from wirewise.errors import WirewiseError
from wirewise.planners.collective.taccl.profiles import PROFILES, SKETCHES
from wirewise.planners.collective.taccl.sketch import load_profile, load_sketch
from wirewise.planners.fusion.disco.estimator import Estimator
from wirewise.planners.jobs import tapfinger
from wirewise.planners.placement.tag import network
from wirewise.profile.stalls.report import load_report
from wirewise.runtime.recovery.job_record import check_folder
from wirewise.runtime.recovery.logs import LoggedMessages, MessageKey, SenderLog
from wirewise.runtime.state_files import read_state, write_state
from wirewise.sim.analysis import analyse
from wirewise.sim.jobs import draw_queue
from wirewise.trace import (
    Trace,
    chakra,
    chrome,
    kineto,
    load,
    read_fusion_graph,
    read_operator_graph,
    read_queue,
    read_queue_log,
    read_speeds,
    read_stage_trace,
    read_tasks,
    write_trace,
)
from wirewise.trace.gradients import read_gradient_trace
from wirewise.trace.recovery import ProtectedStage, RecoveryTrace, read_recovery_trace
from wirewise_papers.adaqp import resuming
from wirewise_papers.adaqp.job import FullGraphJob

MUTANTS = 2000 if EXHAUSTIVE else 200
MOST_S = 5
MOST_BYTES = 1 << 30
PRICES = Path(__file__).parents[2] / "examples" / "prices.toml"
EXECUTION = Path(__file__).parents[1] / "trace" / "fixtures" / "execution-rank-0.json"


class Reader(NamedTuple):
    """A file of some form, and what the command line does with it."""

    good: Callable[[Path], bytes]
    name: str
    read: Callable[[Path], Any]
    gzip: bool = False


def small_trace() -> Trace:
    return make(ranks=1, steps=2).seen


def of_run(folder: Path) -> bytes:
    write_trace(small_trace(), folder / "run")
    return (folder / "run" / "rank-0.jsonl").read_bytes()


def exported(folder: Path) -> bytes:
    chrome.save(small_trace(), folder / "good.json")
    return (folder / "good.json").read_bytes()


def profiled(folder: Path) -> bytes:
    made = Profiled(info(0, 1))
    for step in range(2):
        made.step(step, 1000.0 * step, 900.0)
        made.host("aten::mm", 1000.0 * step + 10, 50)
        made.kernel("gemm", 1000.0 * step + 80, 300, launched=1000.0 * step + 20)
        made.older_collective(
            "nccl:all_reduce", "ncclKernel_AllReduce_RING", 1000.0 * step + 400, 200, 1000.0 * step + 90
        )
    return made.write(folder / "good.json").read_bytes()


def npz(folder: Path) -> bytes:
    np.savez(folder / "good.npz", **GOOD_GRAPH)
    return (folder / "good.npz").read_bytes()


def part(folder: Path) -> bytes:
    np.savez(folder / "graph.npz", **GOOD_GRAPH)
    graph.save_parts(graph.read_graph(folder / "graph.npz"), np.array([0, 0, 1, 1]), folder / "good")
    return (folder / "good" / "part-0.npz").read_bytes()


def read_part(path: Path) -> Any:
    # The number of bytes is checked first; here it is right.
    meta = path.parent / "good" / "meta.json"
    found = json.loads(meta.read_text())
    found["parts"][0]["size_bytes"] = path.stat().st_size
    (path.parent / "meta.json").write_text(json.dumps(found))
    return graph.load_part(path.parent, 0)


def meta(folder: Path) -> bytes:
    part(folder)
    return (folder / "good" / "meta.json").read_bytes()


def estimator(folder: Path) -> bytes:
    found = Path(Estimator.load.__code__.co_filename).parent.glob("data/*.npz")
    return next(iter(sorted(found))).read_bytes()


def costs(folder: Path) -> bytes:
    line = ((1.0, 1e-6), (1e6, 1e-3))
    times = CodecTimes(encode=line, decode=line, decode_sum={2: line})
    schemes = dict.fromkeys(("all_reduce", "all_gather", "divisible"), ((1.0, 0.0001), (1000000.0, 0.01)))
    return msgspec.json.encode(
        GradientCosts(device="cpu", codecs={"none": times}, schemes=schemes, ranks=2, ratio=0.01)
    )


def check_mscclpp(path: Path) -> list[str]:
    return list(mscclpp_plan.violations(mscclpp_plan.loads(path.read_bytes())))


def check_program(path: Path) -> Any:
    program = collective.load(path)
    return collective.faults(program) if program.ranks * program.chunks < 10**6 else program


def show_trace(path: Path) -> Any:
    return analyse(load([path]))


def sizes_of_job(path: Path) -> Any:
    return resuming.read_job(path.parent, {})


def state(folder: Path) -> bytes:
    tree = {"step": 3, "weights": [torch.arange(5.0)], "seen": {1: "a"}, "mask": torch.tensor([True])}
    write_state(folder / "good.state", tree)
    return (folder / "good.state").read_bytes()


KEY = MessageKey(0, 1, 2, 0)


def log_of_messages(folder: Path) -> bytes:
    log = SenderLog(folder, 0)
    log.append(KEY, torch.arange(6.0))
    log.commit(1)
    log.close()
    (path,) = (folder / "rank-0" / "to-rank-1").glob("*.log")
    return path.read_bytes()


def read_log(path: Path) -> Any:
    (segment,) = (path.parent / "rank-0" / "to-rank-1").glob("*.log")
    segment.write_bytes(path.read_bytes())
    return LoggedMessages([path.parent], 1).take(KEY)


JOB = {"model": {"w": "float32 [3]"}, "optimizer": ["SGD"], "scheduler": [], "lr": [0.1], "world_size": 2}


def saved_data(folder: Path) -> bytes:
    torch.save({name: torch.from_numpy(GOOD_GRAPH[name]) for name in GOOD_GRAPH}, folder / "good.pt")
    return (folder / "good.pt").read_bytes()


def read_saved_data(path: Path) -> Any:
    shutil.rmtree(path.parent / "out", ignore_errors=True)
    return graph.convert(str(path), path.parent / "out")


def text(content: bytes | str) -> Callable[[Path], bytes]:
    return lambda folder: content if isinstance(content, bytes) else content.encode()


RING = build("all_reduce", "ring", 3)
READERS: dict[str, Reader] = {
    **{
        f"plan, {family}": Reader(text(made().to_json()), "plan.json", lambda path: plans.load(path).headline)
        for family, made in EXAMPLES.items()
    },
    "program": Reader(text(RING.to_json()), "program.json", check_program),
    "topology": Reader(text(GOOD_TOPOLOGY), "two.toml", lambda path: collective.network(topology.load(path))),
    "sketch": Reader(text(msgspec.json.encode(SKETCHES["ndv2-sk-1"])), "sketch.json", load_sketch),
    "profile": Reader(text(msgspec.json.encode(PROFILES["ndv2-1MB"].profile)), "p.json", load_profile),
    "msccl": Reader(
        text(msccl.dumps(msccl.lower(RING))),
        "ring.xml",
        lambda path: msccl.violations(File.read(str(path)).text),
    ),
    "mscclpp": Reader(text(mscclpp.dumps(RING)), "ring.json", check_mscclpp),
    "run folder": Reader(of_run, "rank-0.jsonl", show_trace),
    "exported trace": Reader(exported, "trace.json", chrome.read),
    "exported trace, archived": Reader(exported, "trace.json.gz", chrome.read, gzip=True),
    "profiler": Reader(profiled, "rank0.json", kineto.read),
    "profiler, archived": Reader(profiled, "rank0.json.gz", show_trace, gzip=True),
    "execution trace": Reader(text(EXECUTION.read_bytes()), "execution.json", chakra.read),
    "gradients": Reader(
        text(json.dumps({"tensors": [{"name": "w", "elements": 10, "gap_us": 5.0}]})),
        "g.json",
        read_gradient_trace,
    ),
    "costs of gradients": Reader(costs, "costs.json", load_costs),
    "operators": Reader(text(random_step(3, 2).to_json()), "graph.json", read_fusion_graph),
    "graph of a step": Reader(text(GOOD.to_json()), "step.json", read_operator_graph),
    "estimator": Reader(estimator, "weights.npz", Estimator.load),
    "tasks": Reader(text(json.dumps(change())), "job.json", read_tasks),
    "modules": Reader(text(msgspec.json.encode(random_trace(1, 4, skips=1))), "m.json", read_stage_trace),
    "stalls": Reader(text(msgspec.json.encode(report())), "stalls.json", load_report),
    "prices": Reader(text(PRICES.read_bytes()), "prices.toml", load_prices),
    "graph": Reader(npz, "graph.npz", graph.read_graph),
    "part": Reader(part, "part-0.npz", read_part),
    "parts": Reader(meta, "meta.json", lambda path: graph.read_meta(path.parent)),
    "state of a rank": Reader(state, "step-3.rank-0.state", read_state),
    "log of messages": Reader(log_of_messages, "mutant.log", read_log),
    "job of checkpoints": Reader(
        text(msgspec.json.encode(JOB)), "job.json", lambda path: check_folder(path.parent, dict(JOB), 0)
    ),
    "queue": Reader(text(msgspec.json.encode(draw_queue(jobs=4))), "queue.json", read_queue),
    **{
        f"log of {name}": Reader(text(log), "log", lambda path, name=name: read_queue_log(name, path, ROOM))
        for name, log in (("helios", HELIOS), ("philly", json.dumps(PHILLY)))
    },
    "speeds": Reader(text("lm,1,1,26\nlm,2,1,11\nlm,1,2,36\nlm,2,2,6\n"), "times.csv", read_speeds),
    "recovery": Reader(
        text(
            msgspec.json.encode(
                RecoveryTrace(stages=(ProtectedStage(ranks=(0, 1), compute_s=1.0),), step_s=2.0)
            )
        ),
        "recovery.json",
        read_recovery_trace,
    ),
    "weights of tag": Reader(text(network.SHIPPED.read_bytes()), "weights.npz", network.read_weights),
    "weights of tapfinger": Reader(
        text(tapfinger.SHIPPED.read_bytes()), "weights.npz", tapfinger.read_weights
    ),
    "saved data": Reader(saved_data, "data.pt", read_saved_data),
    "stopped run": Reader(text(msgspec.json.encode(FullGraphJob())), "job.json", sizes_of_job),
}


class TooLong(BaseException):
    """A reader took more of the processor than its time."""


@pytest.fixture
def bounded() -> Iterator[None]:
    """Little more memory than now; the time is set for each mutant."""

    def late(number: int, frame: object) -> None:
        raise TooLong

    before, handler = resource.getrlimit(resource.RLIMIT_AS), signal.signal(signal.SIGPROF, late)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MOST_BYTES, before[1]))
    yield
    signal.setitimer(signal.ITIMER_PROF, 0)
    resource.setrlimit(resource.RLIMIT_AS, before)
    signal.signal(signal.SIGPROF, handler)


@pytest.mark.sweep
@pytest.mark.parametrize("form", READERS)
def test_the_example_is_read(form: str, tmp_path: Path) -> None:
    reader = READERS[form]
    path = tmp_path / reader.name
    path.write_bytes(reader.good(tmp_path))
    reader.read(path)


@pytest.mark.parametrize("form", READERS)
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("bounded")
def test_no_mutant_ends_in_a_traceback(form: str, tmp_path: Path) -> None:
    reader, dice = READERS[form], random.Random(zlib.crc32(form.encode()))
    good = reader.good(tmp_path)
    path, refused = tmp_path / reader.name, 0
    for number in range(MUTANTS):
        bad = archived(good, dice) if reader.gzip else mutant(good, dice)
        path.write_bytes(bad)
        signal.setitimer(signal.ITIMER_PROF, MOST_S)
        try:
            reader.read(path)
        except WirewiseError as error:
            refused += 1
            assert str(error)
        except BaseException as error:
            signal.setitimer(signal.ITIMER_PROF, 0)
            kept = tmp_path / f"mutant-{number}{path.suffix}"
            kept.write_bytes(bad)
            raise AssertionError(
                f"mutant {number} of {form}, {kept}: {type(error).__name__}: {error}"
            ) from error
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
    assert refused > MUTANTS // 10
