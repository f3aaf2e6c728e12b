"""E1 of the brief on collectives: each rule of the MSCCL format is checked, and a file that breaks it is refused."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import numpy as np
import pytest

from tests.collective.exporters.programs import doubling, ring
from tests.collective.exporters.test_msccl import numbers
from wirewise.collective.exporters import msccl
from wirewise.collective.exporters.msccl.validate import expected_output
from wirewise.errors import ProgramError


def good(collective="all_reduce", dialect="microsoft", ranks=4, **how):
    return ET.fromstring(msccl.dumps(msccl.lower(ring(collective, ranks), **how), dialect))


def first(root, tag, **attributes):
    for node in root.iter(tag):
        if all(node.get(name) == value for name, value in attributes.items()):
            return node
    raise AssertionError(f"no {tag} with {attributes}")


def a_waiting_step(root):
    return next(step for step in root.iter("step") if step.get("depid") != "-1" and step.get("type") != "nop")


def add_steps(root, count):
    """Local copies that do nothing, in a thread block of their own."""
    gpu = first(root, "gpu", id="0")
    tb = ET.SubElement(gpu, "tb", id=str(len(gpu)), send="-1", recv="-1", chan="0")
    for s in range(count):
        form = {"s": s, "type": "cpy", "srcbuf": "i", "srcoff": 0, "dstbuf": "o", "dstoff": 0, "cnt": 1}
        ET.SubElement(tb, "step", {k: str(v) for k, v in form.items()}, depid="-1", deps="-1", hasdep="0")


def add_blocks(root, count, send="-1", recv="-1", chan="0"):
    gpu = first(root, "gpu", id="0")
    for _ in range(count):
        ET.SubElement(gpu, "tb", id=str(len(gpu)), send=send, recv=recv, chan=chan)


def nop(root, **waits):
    """A nop before a step that waits for nothing."""
    tb = first(root, "tb")
    form = {"type": "nop", "srcbuf": "i", "srcoff": "-1", "dstbuf": "o", "dstoff": "-1", "cnt": "0"}
    tb.insert(0, ET.Element("step", s="0", **form, hasdep="0", **waits))
    for s, step in enumerate(tb):
        step.set("s", str(s))
    tb[1].set("depid", "-1")
    tb[1].set("deps", "-1")


def move_block_out_of_reach(root):
    """The thread block that others wait for gets the number 128."""
    gpu = first(root, "gpu", id="0")
    waiting = next(step for step in gpu.iter("step") if step.get("depid") != "-1")
    old = waiting.get("depid")
    block = first(gpu, "tb", id=old)
    add_blocks(root, 129 - len(gpu))
    first(gpu, "tb", id="128").set("id", old)
    block.set("id", "128")
    for step in gpu.iter("step"):
        if step.get("depid") == old:
            step.set("depid", "128")


def drop_last_receive(root):
    receiver = next(tb for tb in root.iter("tb") if tb.get("recv") != "-1")
    receiver.remove(receiver[-1])


def make_race(root):
    step = next(s for s in root.iter("step") if s.get("depid") != "-1" and s.get("type") == "s")
    step.set("depid", "-1")
    step.set("deps", "-1")


def wrong_chunk(root):
    """The first receive of a rank lands in another chunk, consistently."""
    step = next(s for s in root.iter("step") if s.get("type") == "rrc")
    step.set("srcoff", str((int(step.get("srcoff")) + 1) % 4))


def circle(root):
    """Two thread blocks of a rank wait for each other."""
    gpu = first(root, "gpu", id="0")
    a, b = list(gpu.iter("tb"))[:2]
    for one, other in ((a, b), (b, a)):
        one[0].set("depid", other.get("id"))
        one[0].set("deps", "0")
        one[0].set("hasdep", "1")


SEEDED = {
    "attribute": lambda root: root.attrib.pop("ngpus"),
    "integer": lambda root: root.set("nchunksperloop", "4.0"),
    "text": lambda root: root.set("name", "x" * 64),
    "attributes": lambda root: [root.set(f"extra{n}", "1") for n in range(10)],
    "children": lambda root: add_steps(root, 1025),
    "nodes": lambda root: [add_steps(root, 250) for _ in range(17)],
    "protocol": lambda root: root.set("proto", "simple"),
    "collective": lambda root: root.set("coll", "reducescatter"),
    "place": lambda root: root.set("inplace", "2"),
    "bytes": lambda root: root.set("minBytes", root.get("maxBytes")),
    "threads": lambda root: root.set("nthreads", "100"),
    "loop": lambda root: root.set("nchunksperloop", "0"),
    "gpus": lambda root: first(root, "gpu", id="3").set("id", "2"),
    "channels": lambda root: first(root, "tb").set("chan", "32"),
    "chunks": lambda root: first(root, "gpu").set("i_chunks", "3"),
    "block ids": lambda root: first(root, "tb", id="0").set("id", "9"),
    "blocks": lambda root: add_blocks(root, 217),
    "peers": lambda root: first(root, "tb").set("send", "0"),
    "connection": lambda root: add_blocks(root, 1, send="1"),
    "blocks per channel": lambda root: [add_blocks(root, 1, recv=str(3 - n % 3)) for n in range(33)],
    "steps": lambda root: add_steps(root, 257),
    "kind": lambda root: first(root, "step").set("type", "ra"),
    "buffer": lambda root: first(root, "step", type="s").set("srcbuf", "x"),
    "range": lambda root: first(root, "step", type="rrc").set("srcoff", "4"),
    "peer needed": lambda root: first(root, "tb", send="1").set("send", "-1"),
    "count": lambda root: first(root, "step", type="s").set("cnt", "72"),
    "dependence": lambda root: a_waiting_step(root).set("deps", "99"),
    "own block": lambda root: first(root, "tb")[1].attrib.update(depid=first(root, "tb").get("id"), deps="0"),
    "8 bits": move_block_out_of_reach,
    "hasdep": lambda root: [step.set("hasdep", "0") for step in root.iter("step")],
    "nop": lambda root: nop(root, depid="-1", deps="-1"),
    "chain": lambda root: nop(root, depid="1", deps="0"),
    "pairing": drop_last_receive,
    "deadlock": circle,
    "race": make_race,
    "result": wrong_chunk,
}


@pytest.mark.sweep
@pytest.mark.parametrize("rule", SEEDED)
def test_E1_a_file_that_breaks_a_rule_is_refused(rule):
    root = good()
    SEEDED[rule](root)
    found = msccl.violations(ET.tostring(root, encoding="unicode"))
    assert rule in {violation.rule for violation in found}
    for violation in found:
        assert violation.rule in msccl.RULES
        assert violation.where and violation.message


def test_E1_every_rule_has_a_file_that_breaks_it():
    assert {*SEEDED, "xml"} == {*msccl.RULES}
    assert [v.rule for v in msccl.violations("<algo")] == ["xml"]
    assert [v.rule for v in msccl.violations("<other/>")] == ["xml"]


@pytest.mark.parametrize(
    ("rule", "change"),
    [
        ("attribute", lambda root: root.attrib.pop("minBytes")),
        ("attribute", lambda root: root.attrib.pop("outofplace")),
        ("place", lambda root: root.set("outofplace", "0")),
        ("collective", lambda root: root.set("coll", "custom")),
        ("steps", lambda root: add_steps(root, 65)),
    ],
)
def test_E4_what_only_azure_refuses(rule, change):
    root = good(dialect="azure")
    change(root)
    text = ET.tostring(root, encoding="unicode")
    assert rule in {violation.rule for violation in msccl.violations(text, "azure")}
    if rule != "collective":
        assert rule not in {violation.rule for violation in msccl.violations(text)}


def test_no_limit_of_size():
    assert good(dialect="azure").get("maxBytes") == "0"
    assert int(good().get("maxBytes")) == 2**31 - 1
    text = ET.tostring(good(dialect="azure"), encoding="unicode")
    assert {v.rule for v in msccl.violations(text, "microsoft")} == {"bytes"}


def test_other_calls_are_checked_for_form_and_waiting():
    root = good()
    root.set("coll", "custom")
    text = ET.tostring(root, encoding="unicode")
    assert msccl.violations(text) == []
    circle(root)
    assert {v.rule for v in msccl.violations(ET.tostring(root, encoding="unicode"))} == {"deadlock"}


def test_fused_kinds_do_what_they_say():
    """A ring of two ranks by hand: send, then receive, add, store and forward."""
    text = """<algo name="fused" proto="LL" nchannels="1" nchunksperloop="1" ngpus="3" coll="allreduce" inplace="0">
    <gpu id="0" i_chunks="1" o_chunks="1" s_chunks="0"><tb id="0" send="1" recv="2" chan="0">
    <step s="0" type="s" srcbuf="i" srcoff="0" dstbuf="o" dstoff="0" cnt="1" depid="-1" deps="-1" hasdep="0"/>
    <step s="1" type="rcs" srcbuf="i" srcoff="0" dstbuf="o" dstoff="0" cnt="1" depid="-1" deps="-1" hasdep="0"/>
    </tb></gpu>
    <gpu id="1" i_chunks="1" o_chunks="1" s_chunks="0"><tb id="0" send="2" recv="0" chan="0">
    <step s="0" type="rrs" srcbuf="i" srcoff="0" dstbuf="o" dstoff="0" cnt="1" depid="-1" deps="-1" hasdep="0"/>
    <step s="1" type="r" srcbuf="i" srcoff="0" dstbuf="o" dstoff="0" cnt="1" depid="-1" deps="-1" hasdep="0"/>
    </tb></gpu>
    <gpu id="2" i_chunks="1" o_chunks="1" s_chunks="0"><tb id="0" send="0" recv="1" chan="0">
    <step s="0" type="rrcs" srcbuf="i" srcoff="0" dstbuf="o" dstoff="0" cnt="1" depid="-1" deps="-1" hasdep="0"/>
    </tb></gpu></algo>"""
    assert msccl.violations(text) == []


def test_local_additions():
    """`re` adds one buffer to another: a rank that gets both summands into scratch adds them itself."""
    text = """<algo name="local" proto="Simple" nchannels="1" nchunksperloop="1" ngpus="2" coll="allreduce" inplace="0">
    {gpus}</algo>"""
    gpu = """<gpu id="{r}" i_chunks="1" o_chunks="1" s_chunks="1"><tb id="0" send="{p}" recv="{p}" chan="0">
    <step s="0" type="s" srcbuf="i" srcoff="0" dstbuf="o" dstoff="0" cnt="1" depid="-1" deps="-1" hasdep="0"/>
    <step s="1" type="r" srcbuf="i" srcoff="0" dstbuf="s" dstoff="0" cnt="1" depid="-1" deps="-1" hasdep="0"/>
    <step s="2" type="cpy" srcbuf="i" srcoff="0" dstbuf="o" dstoff="0" cnt="1" depid="-1" deps="-1" hasdep="0"/>
    <step s="3" type="re" srcbuf="s" srcoff="0" dstbuf="o" dstoff="0" cnt="1" depid="-1" deps="-1" hasdep="0"/>
    </tb></gpu>"""
    whole = text.format(gpus=gpu.format(r=0, p=1) + gpu.format(r=1, p=0))
    assert msccl.violations(whole) == []
    assert {v.rule for v in msccl.violations(whole.replace('"re"', '"cpy"'))} == {"result"}


def mutated(root, random):
    """One random change: a wait, a place, the order of two steps, a channel, or a step less."""
    steps = [(tb, step) for tb in root.iter("tb") for step in tb]
    tb, step = steps[random.integers(len(steps))]
    match int(random.integers(6)):
        case 0:
            step.set("depid", "-1")
            step.set("deps", "-1")
        case 1:
            step.set("deps", str(max(-1, int(step.get("deps")) - 1)))
        case 2:
            end = "src" if random.integers(2) else "dst"
            step.set(f"{end}off", str(int(random.integers(8))))
        case 3:
            tb.remove(step)
        case 4:
            other = tb[random.integers(len(tb))]
            for name in ("type", "srcbuf", "srcoff", "dstbuf", "dstoff", "cnt"):
                mine, others = step.get(name), other.get(name)
                step.set(name, others)
                other.set(name, mine)
        case 5:
            step.set("type", str(random.choice(["s", "r", "rrc", "rcs", "cpy", "nop"])))
    for s, left in enumerate(tb):
        left.set("s", str(s))


def test_E1_what_passes_after_a_random_change_is_still_right():
    """No false pass: in every order of turns and with one send in a connection, the result is right."""
    random = np.random.default_rng(11)
    texts = [ET.tostring(good(ranks=4, **how), encoding="unicode") for how in ({}, {"fuse": True})]
    texts.append(msccl.dumps(msccl.lower(doubling(4))))
    refused = 0
    for n in range(240):
        root = ET.fromstring(texts[n % 3])
        mutated(root, random)
        text = ET.tostring(root, encoding="unicode")
        if msccl.violations(text):
            refused += 1
            continue
        algorithm = msccl.loads(text)
        inputs = numbers(algorithm, 2)
        for seed in range(4):
            memory = msccl.execute(algorithm, inputs, fifo=1, seed=seed)
            for rank, wanted in expected_output(algorithm, inputs, 0).items():
                np.testing.assert_array_equal(memory[rank]["o"], wanted)
    assert refused > 120


def test_check_names_the_first_fault():
    root = good()
    root.set("proto", "simple")
    first(root, "tb").set("chan", "40")
    with pytest.raises(ProgramError, match=r"algo: protocol: got 'simple'; expected .* \(and 1 more\)"):
        msccl.check(ET.tostring(root, encoding="unicode"))
    msccl.check(ET.tostring(good(), encoding="unicode"))


def test_reading_a_file_of_wrong_form_says_so():
    for text in ("<algo", "<algo/>", '<algo name="x" ngpus="two"/>'):
        with pytest.raises(ProgramError, match="cannot read an MSCCL algorithm"):
            msccl.loads(text)


def test_exchanges_pass_in_both_places():
    for in_place in (False, True):
        text = msccl.dumps(msccl.lower(doubling(8), in_place=in_place, instances=2))
        assert msccl.violations(text) == []
