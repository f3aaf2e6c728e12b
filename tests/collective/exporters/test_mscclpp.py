"""E5 of the brief on collectives: execution plans of MSCCL++ have the form, pair their signals, and are right."""

from __future__ import annotations

import json

import msgspec
import pytest

from tests.collective.exporters.mscclpp_machine import Machine
from tests.collective.exporters.programs import doubling, ring
from tests.collective.exporters.test_msccl import numbers
from wirewise.collective import Program, Transfer
from wirewise.collective.builders import BUILDERS, build
from wirewise.collective.exporters import msccl, mscclpp, mscclpp_plan
from wirewise.collective.exporters.msccl.validate import expected_output
from wirewise.errors import InputError, ProgramError

FIVE = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast")


def in_place_buffers(collective, ranks):
    def share(rank, buffers):
        if collective == "all_gather":
            part = len(buffers["o"]) // ranks
            buffers["o"][rank * part : (rank + 1) * part] = buffers["i"]
            buffers["i"] = buffers["o"][rank * part : (rank + 1) * part]
        elif collective == "reduce_scatter":
            part = len(buffers["o"])
            buffers["o"] = buffers["i"][rank * part : (rank + 1) * part]
        else:
            buffers["o"] = buffers["i"]

    return share


def assert_right(program, in_place=False, seeds=range(3), **how):
    lowered = msccl.lower(program, in_place=in_place, instances=how.get("instances", 1))
    plan = mscclpp_plan.loads(mscclpp.dumps(program, in_place=in_place, **how))
    assert list(mscclpp_plan.violations(plan)) == []
    inputs = numbers(lowered, 3)
    for seed in seeds:
        machine = Machine(plan, inputs, in_place_buffers(program.collective, program.ranks))
        memory = machine.run(seed)
        for rank, wanted in expected_output(lowered, inputs, program.root).items():
            assert (memory[rank]["o"] == wanted).all()


@pytest.mark.sweep
@pytest.mark.parametrize("slots", [1, 2, 8])
@pytest.mark.parametrize("collective", FIVE)
def test_E5_plans_are_right(collective, slots):
    for in_place in {False, collective != "all_to_all"}:
        assert_right(ring(collective, 5, root=1 if collective == "broadcast" else 0), in_place, slots=slots)


def test_instances_and_exchanges():
    assert_right(ring("all_reduce", 4), instances=3)
    for in_place in (False, True):
        assert_right(doubling(4), in_place)


@pytest.mark.sweep
@pytest.mark.parametrize(("collective", "algorithm"), [key for key in BUILDERS if key[0] in FIVE])
def test_known_algorithms(collective, algorithm):
    hosts = [[0, 1], [2, 3]] if algorithm.startswith(("hierarchical", "host_ring")) else None
    assert_right(build(collective, algorithm, 4, hosts=hosts), seeds=[0])


def plan_of(program):
    return json.loads(mscclpp.dumps(program))


def test_the_form_is_that_of_the_executor():
    plan = plan_of(ring("all_reduce", 3))
    # What src/core/executor/execution_plan.cc reads without a default.
    assert {"name", "collective", "protocol", "inplace", "gpus"} <= {*plan}
    for rank, gpu in enumerate(plan["gpus"]):
        assert gpu["id"] == rank
        assert gpu["input_chunks"] and gpu["output_chunks"]
        for block in gpu["threadblocks"]:
            assert {"id", "ops", "channels", "remote_buffer_refs"} == {*block}
            for op in block["ops"]:
                assert None not in op.values()


def test_a_signal_without_its_wait_is_found():
    whole = plan_of(ring("all_reduce", 3))
    blocks = whole["gpus"][0]["threadblocks"]
    for name in ("signal", "wait"):
        plan = json.loads(json.dumps(whole))
        ops = next(b for b in plan["gpus"][0]["threadblocks"] if any(o["name"] == name for o in b["ops"]))[
            "ops"
        ]
        ops.remove(next(op for op in ops if op["name"] == name))
        found = list(mscclpp_plan.violations(mscclpp_plan.loads(json.dumps(plan))))
        assert any("each signal needs one wait" in fault for fault in found)
    assert blocks


def changed(change):
    plan = msgspec.json.decode(mscclpp.dumps(ring("all_reduce", 3)), type=mscclpp_plan.ExecutionPlan)
    change(plan)
    return list(mscclpp_plan.violations(plan))


def operation(plan, name):
    for block in plan.gpus[0].threadblocks:
        for op in block.ops:
            if op.name == name:
                return op
    raise AssertionError(name)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda p: p.gpus.reverse(), "each rank once, in order"),
        (lambda p: setattr(operation(p, "put"), "name", "pput"), "unknown; expected one of"),
        (lambda p: setattr(operation(p, "put").dst_buff[0], "index", 99), "chunks 99 to 99 of a buffer of"),
        (lambda p: setattr(operation(p, "put").dst_buff[0], "buffer_id", 7), "of a buffer of 0"),
        (lambda p: operation(p, "re").src_buff.pop(), "got 1 sources and 1 targets"),
        (lambda p: operation(p, "put").channel_ids.append(5), r"got channels \[0, 5\]"),
        (lambda p: operation(p, "sem_acquire").semaphore_ids.clear(), "got 0 semaphores"),
        (
            lambda p: p.gpus[0].threadblocks[0].ops.extend([mscclpp_plan.Operation(name="nop")] * 64),
            "holds 64",
        ),
        (
            lambda p: p.gpus[0].threadblocks[0].channels[0].channel_ids.extend([0] * 16),
            "more than 16 channels",
        ),
        (lambda p: setattr(operation(p, "sem_release"), "semaphore_ids", []), "acquired 1 times"),
    ],
)
def test_faults_of_plans(change, message):
    import re

    assert any(re.search(message, fault) for fault in changed(change))


def fields(program):
    return {name: getattr(program, name) for name in program.__struct_fields__}


def test_long_programs_are_divided_over_channels():
    program = ring("all_reduce", 14)
    plan = mscclpp_plan.loads(mscclpp.dumps(program))
    assert max(len(block.ops) for gpu in plan.gpus for block in gpu.threadblocks) <= 64
    assert_right(program, seeds=[0])


def test_refusals():
    many = tuple(Transfer(c, 0, 1, c) for c in range(800))
    with pytest.raises(ProgramError, match="MSCCL\\+\\+ has plans for"):
        mscclpp.dumps(ring("reduce", 3))
    with pytest.raises(ProgramError, match="MSCCL\\+\\+ holds 64"):
        mscclpp.dumps(Program(**{**fields(ring("broadcast", 2)), "chunks": 800, "transfers": many}))
    with pytest.raises(InputError, match="got 0 slots"):
        mscclpp.dumps(ring("all_reduce", 3), slots=0)
    with pytest.raises(ProgramError, match="cannot read a plan of MSCCL"):
        mscclpp_plan.loads('{"name": "x"}')
