"""Files that other tools wrote: each kind gets the right verdict, and no wrong one passes."""

from __future__ import annotations

import gzip
import json
import random
import re
import xml.etree.ElementTree as ET
from collections import Counter, defaultdict, deque

import pytest
from typer.testing import CliRunner

from tests.collective.exporters import msccl_files as files
from tests.collective.exporters.programs import ring
from wirewise.cli.main import app
from wirewise.collective.exporters import msccl


def rules(text, **how):
    return {violation.rule for violation in msccl.violations(text, **how)}


@pytest.mark.parametrize("kind", files.RIGHT)
def test_every_kind_is_right_with_the_connections_of_nccl(kind):
    text = files.RIGHT[kind]().text()
    assert msccl.violations(text, fifo=None) == []
    assert msccl.result_unknown(text) is None


@pytest.mark.parametrize("kind", ["all_reduce halving, doubling", "all_gather recursive doubling"])
def test_what_needs_room_for_several_sends_is_stuck_with_one(kind):
    text = files.RIGHT[kind]().text()
    assert rules(text, fifo=1) == {"deadlock"}
    said = msccl.violations(text, fifo=1)[0].message
    assert "holds one send" in said and "bytes end, and maxBytes says no limit: set it to" in said
    # Up to that size it is right, and not a byte beyond.
    most_bytes = int(re.search(r"calls of up to (\d+) bytes", said)[1])
    for limit, verdict in ((most_bytes, set()), (most_bytes + 1, {"deadlock"})):
        limited = re.sub(r"<algo ", f'<algo maxBytes="{limit}" ', re.sub(r' maxBytes="\d+"', "", text))
        assert rules(limited, fifo=1) == verdict


@pytest.mark.parametrize(
    "name", ["allreduce-allpairs-8n-simple", "alltoall-8n-0-9kb", "alltoall-8n-9kb-190kb"]
)
def test_files_of_production_are_right_up_to_their_size(name, wirewise_data):
    text = gzip.decompress((wirewise_data / "rccl" / f"{name}.xml.gz").read_bytes()).decode()
    assert msccl.violations(text, fifo=None) == []
    if name.startswith("allreduce"):
        assert msccl.largest_call_bytes(msccl.loads(text)) == 2**28
        beyond = text.replace('maxBytes="11534336"', f'maxBytes="{2**28 + 1}"')
        [found] = msccl.violations(beyond, fifo=None)
        assert "calls of up to 268435456 bytes end, and maxBytes is 268435457" in found.message


def test_the_depth_is_that_of_the_protocol():
    simple = files.all_gather_recursive_doubling(protocol="Simple").text()
    assert "holds 2 sends of one chunk each, as NCCL's do with protocol Simple" in (
        msccl.violations(simple, fifo=None)[0].message
    )
    assert msccl.violations(simple, fifo=4) == []


@pytest.mark.parametrize(
    ("text", "step"),
    [
        # A sum begins with `re` where a copy belongs: the output holds anything before.
        (files.all_reduce_one_step(start="re").text(), "rank 0, thread block 6, step 0 (re)"),
        # An all-gather adds what it receives to an output that nobody has written.
        (
            files.all_gather_recursive_doubling()
            .text()
            .replace('"r" srcbuf="i" srcoff="0"', '"rrc" srcbuf="o" srcoff="0"'),
            "(rrc)",
        ),
    ],
)
def test_memory_that_nobody_has_written_holds_no_zeros(text, step):
    found = msccl.violations(text, fifo=None)
    assert {violation.rule for violation in found} == {"result"}
    assert f"{step} reads memory that nobody has written" in found[0].message


def check(tmp_path, text, *more):
    path = tmp_path / "algorithm.xml"
    path.write_text(text)
    done = CliRunner().invoke(app, ["check", str(path), "--json", "-", *more])
    return done.exit_code, json.loads(done.stdout)


def test_a_call_without_a_known_result_is_not_checked(tmp_path):
    text = files.all_to_next().text()
    code, found = check(tmp_path, text)
    assert (code, found["verdict"], found["right"]) == (0, "not checked", False)
    assert "what a call of 'custom' ends with" in found["reason"]
    said = CliRunner().invoke(app, ["check", str(tmp_path / "algorithm.xml")]).stdout
    assert "not checked" in said and "right values" not in said
    azure = text.replace('"custom"', '"alltoallv"')
    assert check(tmp_path, azure, "--dialect", "azure")[1]["verdict"] == "not checked"


def test_the_command_takes_the_depth(tmp_path):
    text = files.all_reduce_halving_doubling().text()
    assert check(tmp_path, text)[1]["verdict"] == "right"
    code, found = check(tmp_path, text, "--fifo", "1")
    assert (code, found["verdict"]) == (1, "wrong") and "deadlock" in found["reason"]
    assert found["reason"] == found["faults"][0]


UNDEFINED = Counter({"undefined": 1})


def outcome(root):
    """What each rank's output holds in one order of steps, as sums of named inputs; None: it never ends.

    Written apart from the package: unlimited connections, one chunk a message, out of place.
    """
    gpus = sorted(root.iter("gpu"), key=lambda gpu: int(gpu.get("id")))
    memory, lines, done, next_step = {}, defaultdict(deque), set(), {}
    for gpu in gpus:
        rank = int(gpu.get("id"))
        for name, what in (("i_chunks", "i"), ("o_chunks", "o"), ("s_chunks", "s")):
            for at in range(int(gpu.get(name))):
                memory[rank, what, at] = Counter({f"{rank}.{at}": 1}) if what == "i" else UNDEFINED
        next_step |= {(rank, int(tb.get("id"))): (tb, list(tb), 0) for tb in gpu.iter("tb")}
    moved = True
    while moved:
        moved = False
        for (rank, number), (tb, steps, index) in list(next_step.items()):
            if index == len(steps):
                continue
            step = steps[index]
            needed = (rank, int(step.get("depid")), int(step.get("deps")))
            count, kind = int(step.get("cnt")), step.get("type")
            channel = tb.get("chan")
            line = lines[tb.get("recv"), str(rank), channel]
            takes = kind in ("r", "rrc", "rrs", "rcs", "rrcs")
            if (needed[1] >= 0 and needed not in done) or (takes and len(line) < count):
                continue
            for c in range(count):
                source = (rank, step.get("srcbuf"), int(step.get("srcoff")) + c)
                target = (rank, step.get("dstbuf"), int(step.get("dstoff")) + c)
                value = line.popleft() if takes else memory[source]
                if kind in ("rrc", "rrs", "rrcs"):
                    value = value + memory[source]
                if kind == "re":
                    value = value + memory[target]
                if kind in ("r", "rrc", "rcs", "rrcs", "cpy", "re"):
                    memory[target] = value
                if kind in ("s", "rrs", "rcs", "rrcs"):
                    lines[str(rank), tb.get("send"), channel].append(value)
            done.add((rank, number, index))
            next_step[rank, number] = (tb, steps, index + 1)
            moved = True
    if any(index < len(steps) for _, steps, index in next_step.values()) or any(lines.values()):
        return None
    return memory


def is_right(root):
    memory, ranks, loop = outcome(root), int(root.get("ngpus")), int(root.get("nchunksperloop"))
    if memory is None:
        return False
    part = loop // ranks
    for rank in range(ranks):
        for at in range(int(root.find("gpu").get("o_chunks"))):
            wanted = {
                "allreduce": lambda at: {f"{peer}.{at}": 1 for peer in range(ranks)},
                "allgather": lambda at: {f"{at // part}.{at % part}": 1},
                "alltoall": lambda at, rank=rank: {f"{at // part}.{rank * part + at % part}": 1},
            }[root.get("coll")](at)
            if memory[rank, "o", at] != wanted:
                return False
    return True


def mutate(root, dice):
    """Change one thing as a bug in a generator would."""
    steps = [step for step in root.iter("step") if step.get("type") != "nop"]
    step = dice.choice(steps)
    how = dice.choice(["type", "offset", "buffer", "swap", "drop", "wait"])
    if how == "type":
        groups = (("cpy", "re"), ("r", "rrc"), ("rcs", "rrcs", "rrs"))
        group = next((group for group in groups if step.get("type") in group), ("s",))
        step.set("type", dice.choice(group))
    elif how == "offset":
        name = dice.choice(["srcoff", "dstoff"])
        step.set(name, str(dice.randrange(int(root.get("nchunksperloop")))))
    elif how == "buffer":
        step.set(dice.choice(["srcbuf", "dstbuf"]), dice.choice("ios"))
    elif how == "swap":
        other = dice.choice(steps)
        for name in ("srcoff", "dstoff"):
            mine, theirs = step.get(name), other.get(name)
            step.set(name, theirs)
            other.set(name, mine)
    elif how == "drop":
        block = next(block for block in root.iter("tb") if step in list(block))
        block.remove(step)
        for index, left in enumerate(block):
            left.set("s", str(index))
    else:
        step.set("depid", "-1")
        step.set("deps", "-1")


OUT_OF_PLACE = [
    files.all_reduce_one_step,
    files.all_reduce_all_pairs,
    files.all_reduce_hierarchical,
    files.all_gather_recursive_doubling,
    files.all_to_all_two_step,
]


def test_the_judge_of_mutants_agrees_on_what_is_right():
    for make in OUT_OF_PLACE:
        assert is_right(ET.fromstring(make().text()))
    for collective in ("all_reduce", "all_gather", "all_to_all"):
        assert is_right(ET.fromstring(msccl.dumps(msccl.lower(ring(collective, 4)))))


def test_no_wrong_mutant_passes():
    dice, caught = random.Random(7), 0
    texts = [make().text() for make in OUT_OF_PLACE]
    texts += [msccl.dumps(msccl.lower(ring(what, 4))) for what in ("all_reduce", "all_gather", "all_to_all")]
    for number in range(320):
        root = ET.fromstring(texts[number % len(texts)])
        mutate(root, dice)
        text = ET.tostring(root, encoding="unicode")
        passes = not msccl.violations(text, fifo=None)
        assert not passes or is_right(root), text
        caught += not passes
    # Many changes make no difference, such as an offset that the kind of step does not read.
    assert caught > 120
