"""Every field of every record changes a prediction, is refused by its name, or only says what the plan is about."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
import pytest

from tests.conformance import test_plan_laws as examples
from wirewise import plans
from wirewise.collective import build
from wirewise.cost import CodecCost, LinkCost, Links
from wirewise.cost.gradients import V100
from wirewise.errors import PlanError
from wirewise.plans import Bucket, FusionPlan
from wirewise.sim import predict
from wirewise.sim.region_costs import AnalyticCosts, Roofline
from wirewise.trace import (
    Flow,
    FusionGraph,
    GradientTensor,
    GradientTrace,
    Module,
    ModuleTrace,
    Operator,
    TaskSet,
    TrainingTask,
)

set_ = msgspec.structs.replace

LINKS = Links.uniform(2, 1e7, 1e-4)
MODULES = ModuleTrace(
    modules=[
        Module(name="a", forward_s=1e-3, backward_s=2e-3, gradient_bytes=800_000, bfloat16_s=(5e-4, 1e-3)),
        Module(name="b", forward_s=1e-3, backward_s=2e-3, gradient_bytes=1_200_000),
    ],
    hosts=[0, 1],
    fused_share=0.5,
)
FUSION = FusionPlan(
    world_size=2,
    planner="example",
    buckets=(Bucket(parameters=("b",), size_bytes=1_200_000), Bucket(parameters=("a",), size_bytes=800_000)),
)
GRADIENTS = GradientTrace(
    tensors=(
        GradientTensor(name="b", elements=300_000, gap_us=2000.0),
        GradientTensor(name="a", elements=200_000, gap_us=2000.0),
    )
)
OPERATORS = FusionGraph(
    operators=(
        Operator(name="x", kind="k", category="pointwise", output_bytes=10**6),
        Operator(name="y", kind="k", category="pointwise", inputs=(0,), output_bytes=1_200_000, gradient="b"),
        Operator(name="z", kind="k", category="pointwise", inputs=(0,), output_bytes=800_000, gradient="a"),
    )
)
REGIONS = AnalyticCosts(OPERATORS, Roofline(1e-4, 1e-12, 1e-9))


def by_modules(plan):
    return predict(plan, MODULES, LINKS, costs=V100)


def by_gradients(plan):
    return predict(plan, GRADIENTS, LINKS, costs=V100)


def by_operators(plan):
    return predict(plan, OPERATORS, LINKS, regions=REGIONS)


def bucket(**change: Any):
    return lambda plan: set_(plan, buckets=(set_(plan.buckets[0], **change), *plan.buckets[1:]))


def field(**change: Any):
    return lambda plan: set_(plan, **change)


ABOUT = {"planner", "seed"}
"""Fields of all plans that tell who made it."""

OUTCOMES = {
    "fusion": {
        "predicted_step_s",
        "baseline_step_s",
        "lower_bound_s",
        "compressed_step_s",
        "uncompressed_step_s",
        "unsplit_step_s",
        "predicted_memory_bytes",
    },
    # Rows that a batch needs in all, and the draws that both figures of rows are the means of.
    "cache": {
        "num_nodes",
        "owner",
        "fanouts",
        "batch_size",
        "batches",
        "semantics",
        "needed",
        "nodes",
        "budget",
    },
    "collective": {
        "topology",
        "bound_s",
        "bound_routes_s",
        "predicted_s",
        "certificate",
        "certificate_routes",
        "hashed_s",
        "synthesis_s",
        "candidates",
        "notes",
    },
    "bitwidth": {"predicted_s", "noise", "weight_sigma", "epoch", "forward_covers_backward"},
    # Names of hosts are not in links.
    "placement": {"hosts", "predicted_s", "colocated_s", "lower_bound_s", "competitive_ratio"},
    # What the timetable is called, and what it may keep; a check of the plan holds it to that.
    "stages": {"style", "depths", "predicted_s", "predicted_bytes", "pass_s", "message_s", "notes"},
    "recovery": {"predicted_s", "goodput", "overhead", "recoveries", "front", "chosen", "others", "notes"},
    "jobs": {"predicted_s", "notes"},
    # Dimensions of a mesh go by their numbers.
    "parallel": {
        "mesh_names",
        "level",
        "predicted_step_s",
        "bound_s",
        "gap",
        "memory_bytes",
        "choices",
        "why",
        "notes",
        "block",
        "strategy",
    },
    # Links know no names of devices and hosts.
    "deployment": {"predicted_step_s", "baseline_step_s", "predicted_bytes", "notes", "name", "host"},
    # A strategy is told by its trees, an order by its rounds.
    "reshard": {"strategy", "order", "predicted_s", "bound_s", "busiest", "candidates", "name"},
}
"""What planners found out, or planned for: other figures here are no other decision."""

FUSION_CHANGES = {
    "world_size": field(world_size=3),
    "buckets": field(buckets=(Bucket(parameters=("b", "a"), size_bytes=2_000_000),)),
    "parameters": bucket(parameters=("c",)),
    "size_bytes": bucket(size_bytes=1_000_000),
    "chunks": bucket(chunks=4),
    "codec": bucket(codec="fp16"),
    "scheme": bucket(codec="fp16", scheme="divisible"),
    "decode": bucket(codec="efsign", scheme="all_gather", decode="queue"),
    "splits": lambda plan: set_(
        plan,
        splits={"b": 155_648},
        buckets=(
            Bucket(parameters=("b[0]",), size_bytes=4 * 155_648),
            Bucket(parameters=("b[1]",), size_bytes=4 * (300_000 - 155_648)),
            plan.buckets[1],
        ),
    ),
    "fused_ops": field(fused_ops=(("a", "b"),)),
    "regions": field(regions=(("x",), ("y", "z"))),
    "precision": field(precision="bfloat16"),
    "recompute": field(recompute=("b",)),
    "accumulation": field(accumulation=2),
}
"""Each with a change of the plan."""
AGAINST = {
    "scheme": bucket(codec="fp16"),
    "decode": bucket(codec="efsign", scheme="all_gather"),
}
"""What a change is compared with, where it is not the plan as it is."""
COUNTED = {
    "modules": {
        "buckets",
        "chunks",
        "codec",
        "scheme",
        "decode",
        "splits",
        "fused_ops",
        "precision",
        "recompute",
        "accumulation",
    },
    "gradients": {"buckets", "chunks", "codec", "scheme", "decode", "splits"},
    "operators": {"buckets", "chunks", "regions"},
}
"""Fields that change the prediction, by grain; all others are refused."""


def test_every_field_of_a_fusion_plan_is_looked_at():
    fields = {*FusionPlan.__struct_fields__, *Bucket.__struct_fields__}
    assert fields == {*FUSION_CHANGES, *ABOUT, *OUTCOMES["fusion"]}


@pytest.mark.sweep
@pytest.mark.parametrize("name", FUSION_CHANGES)
@pytest.mark.parametrize(
    ("grain", "ask"), [("modules", by_modules), ("gradients", by_gradients), ("operators", by_operators)]
)
def test_a_field_of_a_fusion_plan_counts_or_is_refused_by_name(grain, ask, name):
    changed = FUSION_CHANGES[name](FUSION)
    if name in COUNTED[grain]:
        before = AGAINST.get(name, lambda plan: plan)(FUSION)
        assert ask(changed).step_s != pytest.approx(ask(before).step_s, rel=1e-9)
        return
    place = {"parameters": "buckets", "codec": "buckets", "scheme": "buckets", "decode": "buckets"}.get(
        name, name
    )
    with pytest.raises(PlanError, match=place if name != "world_size" else "world size 3"):
        ask(changed)


def test_a_codec_without_times_is_refused():
    plan = bucket(codec="topk", scheme="all_gather")(FUSION)
    for job in (MODULES, GRADIENTS):
        with pytest.raises(PlanError, match="topk"):
            predict(plan, job, LINKS, costs=V100)
    with pytest.raises(PlanError, match=r"'fp16' are not known .none, as no costs are given.; give costs="):
        predict(bucket(codec="fp16")(FUSION), MODULES, LINKS)


def channel(**change: Any):
    return lambda plan: set_(plan, channels=(set_(plan.channels[0], **change), *plan.channels[1:]))


def task(number: int, **change: Any):
    return lambda plan: set_(
        plan, tasks=tuple(set_(one, **change) if i == number else one for i, one in enumerate(plan.tasks))
    )


def action(position: int, place: int, **change: Any):
    def changed(plan):
        rows = [list(row) for row in plan.timetable]
        rows[position][place] = set_(rows[position][place], **change)
        return set_(plan, timetable=tuple(map(tuple, rows)))

    return changed


def stage(number: int, **change: Any):
    return lambda plan: set_(
        plan, stages=tuple(set_(one, **change) if i == number else one for i, one in enumerate(plan.stages))
    )


def unit_task(number: int, **change: Any):
    return lambda plan: set_(
        plan, tasks=tuple(set_(one, **change) if i == number else one for i, one in enumerate(plan.tasks))
    )


def tree(**change: Any):
    return lambda plan: unit_task(1, trees=(set_(plan.tasks[1].trees[0], **change),))(plan)


def tensor(**change: Any):
    return lambda plan: set_(plan, tensors=(set_(plan.tensors[0], **change), *plan.tensors[1:]))


def sharding(**change: Any):
    return lambda plan: tensor(source=set_(plan.tensors[0].source, **change))(plan)


OTHERS = {
    "bitwidth": {
        "world_size": lambda p: set_(p, world_size=3),
        "channels": lambda p: set_(p, channels=p.channels[:2]),
        "param_bytes": lambda p: set_(p, param_bytes=4),
        "exchange": channel(exchange="forward2"),
        "sender": channel(sender=1, receiver=0),
        "receiver": channel(sender=1, receiver=0),
        "width": lambda p: set_(p, channels=tuple(set_(c, width=64) for c in p.channels)),
        "bits": channel(bits=bytes([32, 32, 32])),
    },
    "cache": {
        "world_size": field(world_size=3),
        "machines": lambda p: set_(p, machines=p.machines[:1]),
        "imbalance": field(imbalance=1.1),
        "fetched": lambda p: set_(p, machines=(set_(p.machines[0], fetched=(0.0, 90.0)), *p.machines[1:])),
    },
    "collective": {
        "world_size": field(world_size=3),
        "program": field(program=build("all_reduce", "reduce_broadcast", 2)),
        "size_bytes": field(size_bytes=2_000_000),
    },
    "placement": {
        "world_size": field(world_size=3, hosts=("host0", "host1", "host2")),
        "tasks": lambda p: set_(p, tasks=p.tasks[:2]),
        "name": task(0, name="other"),
        "kind": task(2, kind="server"),
        "host": task(1, host=0),
        "demand": task(2, demand={"gpu": 2.0}),
        "iterations": field(iterations=4),
        "prefetch": field(prefetch=3),
    },
    "stages": {
        "world_size": field(world_size=5),
        "stages": field(
            stages=(plans.Stage(modules=("a",), position=0), plans.Stage(modules=("b", "c"), position=1))
        ),
        "modules": stage(0, modules=("a", "d")),
        "position": stage(0, position=1),
        "recompute": stage(0, recompute=True),
        "ranks": field(ranks=(((0,), (2,)), ((3,), (1,)))),
        "microbatches": field(microbatches=4),
        "microbatch_size": field(microbatch_size=3),
        "timetable": field(timetable=plans.timetables.two_versions(2, 3, depths=(3, 1)), depths=(3, 1)),
        "edges": field(edges=((0, 1), (1, 0))),
        "splits": field(splits=(plans.ValueSplit(module="b", stage=1, dim=0),)),
        "weight_versions": field(weight_versions=1, exchange="end"),
        "exchange": field(exchange="end"),
        "kind": action(0, 1, kind="F"),
        "stage": action(0, 1, stage=1),
        "microbatch": action(0, 1, microbatch=2),
    },
}


def allotment(number: int, **change: Any):
    return lambda plan: set_(
        plan,
        allotments=tuple(
            set_(one, **change) if i == number else one for i, one in enumerate(plan.allotments)
        ),
    )


OTHERS["jobs"] = {
    "world_size": field(world_size=3, clusters=("x", "y", "z")),
    "allotments": lambda p: set_(p, allotments=p.allotments[:2]),
    "job": allotment(2, job="c"),
    "cluster": allotment(2, cluster=0),
    "cpus": allotment(2, cpus=1),
    "gpus": allotment(2, gpus=6),
    "start": allotment(2, start=2),
    "end": allotment(2, end=5),
    "clusters": field(clusters=("x", "z")),
    "slot_s": field(slot_s=1.0),
    "kept": field(kept=0.4),
    "mean_completion_s": field(mean_completion_s=7.0),
}


def deployed(number: int, **change: Any):
    return lambda plan: set_(
        plan, groups=tuple(set_(g, **change) if i == number else g for i, g in enumerate(plan.groups))
    )


def device(**change: Any):
    return lambda plan: set_(plan, devices=(*plan.devices[:2], set_(plan.devices[2], **change)))


OTHERS["deployment"] = {
    "world_size": lambda p: set_(
        p, world_size=4, devices=(*p.devices, p.devices[0]), predicted_bytes=(1,) * 4
    ),
    "batch": field(batch=9),
    "devices": lambda p: set_(p, devices=p.devices[::-1]),
    "type": device(type=""),
    "speed": device(speed=0.5),
    "memory_bytes": device(memory_bytes=1e4),
    "groups": lambda p: set_(p, groups=p.groups[:3]),
    "ops": deployed(0, ops=("z",), duplicated=("z",)),
    "communication": deployed(0, communication="allreduce", duplicated=()),
    "rows": deployed(0, rows=(4, 4)),
    "owners": deployed(1, owners=(0,)),
    "duplicated": deployed(0, duplicated=("b",)),
    "priority": deployed(0, priority=-1),
}


def move(number: int, **change: Any):
    return lambda plan: set_(
        plan, moves=tuple(set_(m, **change) if i == number else m for i, m in enumerate(plan.moves))
    )


def move_step(number: int, **change: Any):
    def changed(plan):
        *before, last = plan.moves[number].steps
        return move(number, steps=(*before, set_(last, **change)))(plan)

    return changed


OTHERS["parallel"] = {
    "world_size": field(world_size=6, ranks=((0, 1), (2, 3), (4, 5))),
    "graph": field(graph="0" * 16),
    "mesh": field(mesh=(2, 1), mesh_names=("data", "model")),
    "ranks": field(ranks=((0, 2), (1, 3))),
    "microbatches": field(microbatches=4),
    "stage_of": field(stage_of=(0, 0, 0, 1, 1, 1, 0, 0, 0)),
    "placements": lambda p: set_(p, placements=(*p.placements[:3], ("S0",), *p.placements[4:])),
    "moves": lambda p: set_(p, moves=p.moves[:2]),
    "buckets": field(buckets=((2,),)),
    "inner": field(inner={}),
    "recompute": field(recompute=()),
    "producer": move(1, producer=5),
    "consumers": move(1, consumers=(8,)),
    "source": move(0, source=("R",)),
    "target": move(0, target=("S0",)),
    "steps": move(2, steps=()),
    "once": move(2, once=False),
    "kind": move_step(2, kind="all_reduce"),
    "mesh_dim": move_step(2, mesh_dim=1),
    "size_bytes": lambda p: set_(p, inner={4: (set_(p.inner[4][0], size_bytes=40_000),)}),
    "sent_bytes": move_step(2, sent_bytes=40_000),
}
OTHERS["reshard"] = {
    "world_size": field(world_size=4),
    "tensors": field(tensors=()),
    "shape": tensor(shape=(4, 4)),
    "dtype": tensor(dtype="float64"),
    "source": tensor(source=plans.parse_sharding("1@1:R,R")),
    "target": tensor(target=plans.parse_sharding("2@1-2:S0,R")),
    "mesh": sharding(mesh=(2,)),
    "ranks": sharding(ranks=(2,)),
    "dims": sharding(dims=((), (0, 0))),
    "partial": sharding(partial=(1,)),
    "rows": sharding(rows=(((0, 1),),)),
    "bucket": tensor(bucket=1),
    "hosts": field(hosts=(0, 0, 1)),
    "tasks": lambda p: set_(p, tasks=p.tasks[:1]),
    "slices": unit_task(1, slices=()),
    "size_bytes": unit_task(1, size_bytes=16),
    "holders": unit_task(1, holders=((0, 1),)),
    "receivers": unit_task(1, receivers=(0, 1)),
    "adders": unit_task(1, adders=(0, 1)),
    "round": unit_task(1, round=1),
    "trees": lambda p: unit_task(0, trees=(set_(p.tasks[0].trees[0], edges=((0, 1), (0, 2))),))(p),
    "start": tree(start=1),
    "stop": tree(stop=4),
    "sender": tree(sender=1),
    "edges": tree(edges=((0, 1), (0, 1))),
    "chunk_bytes": field(chunk_bytes=8),
}


def log(number: int, **change: Any):
    return lambda plan: set_(
        plan, logs=tuple(set_(one, **change) if i == number else one for i, one in enumerate(plan.logs))
    )


OTHERS["recovery"] = {
    "world_size": field(world_size=5),
    "stages": lambda p: set_(p, stages=p.stages[:2]),
    "ranks": stage(2, ranks=(3, 2)),
    "strategy": stage(2, strategy="log"),
    "group": stage(2, group=2),
    "logs": lambda p: set_(p, logs=p.logs[:1]),
    "source": log(0, source=2),
    "target": log(0, target=2),
    "tier": log(1, tier="memory"),
    "bytes_per_step": log(0, bytes_per_step=1e6),
    "interval_steps": field(interval_steps=31),
    "consistency": field(consistency="ping-pong"),
    "helpers": field(helpers=3),
    "parallel_mode": field(parallel_mode="fast"),
    "spares": field(spares=0),
    "heartbeat_s": field(heartbeat_s=0.2),
    "silence_limit_s": field(silence_limit_s=1.0),
    "mtbf_s": field(mtbf_s=50.0),
}
RECORDS = {
    "parallel": (plans.ParallelPlan, plans.Move, plans.MoveStep, plans.BlockChoice),
    "deployment": (plans.DeploymentPlan, plans.DeployedGroup, plans.DeployedDevice),
    "bitwidth": (plans.BitWidthPlan, plans.ChannelBits),
    "cache": (plans.CachePlan, plans.MachineCache),
    "collective": (plans.CollectivePlan,),
    "placement": (plans.PlacementPlan, plans.PlacedTask),
    "jobs": (plans.JobPlan, plans.JobAllotment),
    "stages": (plans.StagePlan, plans.Stage, plans.StageAction),
    "recovery": (plans.RecoveryPlan, plans.StageRecovery, plans.MessageLog),
    "reshard": (
        plans.ReshardPlan,
        plans.LaidOutTensor,
        plans.Sharding,
        plans.UnitTask,
        plans.MulticastTree,
    ),
}
PAIRS = {(0, 1): LinkCost(latency_s=1e-4, s_per_byte=1e-6), (1, 0): LinkCost(latency_s=1e-4, s_per_byte=3e-6)}
RATES = dict.fromkeys(plans.BITS, 1e9)
PLACED = TaskSet(
    iterations=3,
    tasks=(
        TrainingTask(name="store", kind="store"),
        TrainingTask(name="sampler", kind="sampler", worker="worker", demand={"cpu": 2.0}),
        TrainingTask(name="worker", kind="worker", execution_s=0.1, demand={"gpu": 1.0}),
    ),
    flows=(
        Flow(source="store", target="sampler", size_bytes=1e7),
        Flow(source="sampler", target="worker", size_bytes=3e7),
    ),
)


def ask(family, plan):
    if family == "bitwidth":
        return predict(plan, None, Links.of_pairs(PAIRS, 2), costs=CodecCost.of_rates(RATES, RATES))
    if family == "placement":
        return predict(plan, PLACED, Links.uniform(2, 1e8))
    if family == "stages":
        slow = {
            pair: LinkCost(latency_s=1e-4, s_per_byte=1e-7 if 2 in pair else 1e-8)
            for pair in itertools.permutations(range(4), 2)
        }
        return examples.predict_stages(plan, Links.of_pairs(slow, 4))
    return examples.PREDICTIONS[family](plan)


@pytest.mark.parametrize("family", OTHERS)
def test_every_field_of_a_plan_is_looked_at(family):
    fields = {name for record in RECORDS[family] for name in record.__struct_fields__}
    # How flows share a link where two meet: tests of the simulator's policies.
    looked = {*OTHERS[family], *ABOUT, *OUTCOMES[family], *({"policy"} if family == "placement" else ())}
    assert fields == looked


CHANNEL = r"forward1 1 -> 0 - at `\$\.channels\[1\]`"
"""An exchange, a sender and a receiver are the name of a channel."""
REFUSALS = {
    "parallel": {
        "world_size": "world size 6",
        "graph": r"for the graph '0000000000000000' - at `\$\.graph`",
        "mesh": r"has 1 words - at `\$\.placements\[0\]`",
        "stage_of": r"takes node 5 of stage 1, .* no message - at `\$\.moves`",
        "producer": r"takes node 6 of stage 1, .* no message",
        "consumers": r"takes node 6 of stage 1, .* no message",
        "source": r"it takes \['R'\] - at `\$\.moves\[0\]`",
        "mesh_dim": r"along 1 of .* at `\$\.moves\[2\]`",
        "buckets": r"2 stages and 2 microbatches - at `\$\.buckets`",
    },
    "deployment": {
        "world_size": "world size 4",
        "batch": r"rows are \[2, 6\]; .*9 in all",
        "memory_bytes": r"device 'gpu2' needs .* at `\$\.groups`",
        "groups": r"lack \['d', 'e'\]",
        "ops": r"hold \['z'\]",
        "duplicated": r"duplicated are \['b'\]",
    },
    "bitwidth": {"world_size": "world size 3", "sender": CHANNEL, "receiver": CHANNEL},
    "cache": {"world_size": "machines - .*expected 3, one for each rank", "machines": r"\$\.machines"},
    "collective": {"world_size": "world size 3"},
    "placement": {
        "world_size": "world size 3",
        "tasks": "other tasks; not placed: worker;",
        "name": "other tasks; unknown to the job: other;",
        "kind": "other tasks; of another kind: worker;",
        "demand": r"\$\.tasks\[2\]\.demand",
        "iterations": r"\$\.iterations",
        "prefetch": r"\$\.prefetch",
    },
    "jobs": {
        "world_size": "world size 3",
        "allotments": r"job 'a' has 37.5% of its progress",
        "job": r"job 'c' - at `\$\.allotments\[2\]\.job`",
        "cluster": r"cluster 0 \('x'\) gives 8 gpus in slot 2 - at `\$\.allotments`; it has 2",
        "cpus": r"job 'b' - at `\$\.allotments\[2\]` has 1 cpus and 7 gpus; it starts with 2 and 1",
        "gpus": r"job 'b' has 96",
        "start": r"job 'b' has 80",
        "end": r"lasts to slot 5; the job is done in slot 4",
        "clusters": r"\$\.clusters",
        "slot_s": "slots of 1.0 s",
        "kept": r"job 'a' has 95.0%",
        "mean_completion_s": r"\$\.mean_completion_s",
    },
    "stages": {
        "world_size": r"\$\.ranks",
        "modules": "module 'd'",
        "position": "position 0 has no stage",
        "microbatches": r"\$\.timetable\[0\].*a forward pass is missing",
        "edges": r"\$\.edges\[1\]",
        "splits": r"\$\.splits\[0\].*one rank has the stage",
        "weight_versions": r"\$\.timetable\[0\].*expected microbatches 0 to 2",
        "kind": r"\$\.timetable\[0\]",
        "stage": r"\$\.timetable\[0\].*another position",
        "microbatch": r"\$\.timetable\[0\].*once more",
    },
    "recovery": {
        "world_size": r"\$\.stages",
        "stages": r"\$\.stages",
        "ranks": r"other ranks at stage 2 - at `\$\.stages`",
        "group": r"\$\.logs.*messages 2 -> 1",
        "logs": r"\$\.logs.*messages 1 -> 0",
        "source": r"\$\.logs\[0\].*two groups",
        "target": r"\$\.logs.*messages 0 -> 1",
        "bytes_per_step": r"\$\.logs.*messages 0 -> 1",
    },
    "reshard": {
        "world_size": r"expected one for each of 4 ranks",
        "tensors": r"there are 2 tasks - at `\$\.tasks`; the layouts ask for 0",
        "shape": r"slices, .* are not those that the layouts ask for - at `\$\.tasks\[0\]`",
        "dtype": r"size_bytes is 32 - at `\$\.tasks\[0\]`; expected 64",
        "source": r"holders or receivers are not those .* `\$\.tasks\[0\]`",
        "target": r"slices, holders or receivers are not those .* `\$\.tasks\[0\]`",
        "mesh": r"source.ranks: got \[0\]; expected 2 different ranks.* `\$\.tensors\[0\]`",
        "ranks": r"holders or receivers are not those .* `\$\.tasks\[0\]`",
        "dims": r"source.dims: axis 0 splits or sums twice.* `\$\.tensors\[0\]`",
        "partial": r"source.dims: there is no axis 1.* `\$\.tensors\[0\]`",
        "rows": r"no rank of the source holds .* at `\$\.tensors`",
        "bucket": r"slices, .* are not those that the layouts ask for - at `\$\.tasks\[0\]`",
        "hosts": r"hosts are \[0, 0, 1\] - at `\$\.hosts`",
        "tasks": r"there are 1 tasks - at `\$\.tasks`; the layouts ask for 2",
        "slices": r"slices, .* `\$\.tasks\[1\]`",
        "size_bytes": r"size_bytes is 16 - at `\$\.tasks\[1\]`; expected 32",
        "holders": r"holders or receivers .* `\$\.tasks\[1\]`",
        "receivers": r"receivers are not those .* `\$\.tasks\[1\]`",
        "adders": r"adders: got \[0, 1\]; expected a holder of each of 0 partial sums.* `\$\.tasks\[1\]`",
        "start": r"trees: rank 1 gets bytes \[\(1, 32\)\] of 32; expected each of them once - at `\$\.tasks\[1\]`",
        "stop": r"trees: rank 1 gets bytes \[\(0, 4\)\] of 32",
        "sender": r"trees\[0\].sender: rank 1 does not hold it",
        "edges": r"trees\[0\].edges: 0 -> 1 comes too early, twice",
    },
}
"""How the refusal of a change names its field; all other changes count."""


@pytest.mark.sweep
@pytest.mark.parametrize(("family", "name"), [(f, n) for f, changes in OTHERS.items() for n in changes])
def test_a_field_counts_or_is_refused_by_name(family, name):
    plan = examples.EXAMPLES[family]()
    before, changed = ask(family, plan).step_s, OTHERS[family][name](plan)
    if name in REFUSALS[family]:
        with pytest.raises(PlanError, match=REFUSALS[family][name]):
            ask(family, changed)
    else:
        assert ask(family, changed).step_s != pytest.approx(before, rel=1e-9)
