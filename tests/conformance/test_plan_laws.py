"""Laws that every plan family keeps."""

from __future__ import annotations

from types import SimpleNamespace

import msgspec
import numpy as np
import pytest

from wirewise import plans
from wirewise.collective import build
from wirewise.cost import LinkCost, Links
from wirewise.errors import PlanError
from wirewise.plans.cache import owner_digest, pack_node_ids
from wirewise.sim import BatchTimes, predict
from wirewise.sim.jobs import edge_kinds
from wirewise.topology import lab_hosts
from wirewise.trace import (
    EdgeCluster,
    Flow,
    JobQueue,
    Module,
    ModuleTrace,
    OperatorGraph,
    OperatorNode,
    ProtectedStage,
    QueuedJob,
    RecoveryTrace,
    StageMessages,
    StageModule,
    StageTrace,
    TaskSet,
    TrainingTask,
)


def bitwidth() -> plans.BitWidthPlan:
    def channel(exchange, sender, bits):
        return plans.ChannelBits(
            exchange=exchange, sender=sender, receiver=1 - sender, width=16, bits=bytes(bits)
        )

    channels = (
        channel("forward1", 0, [8, 4, 32]),
        channel("forward1", 1, [4, 16]),
        channel("backward1", 1, [1, 2, 2]),
        channel("backward1", 0, [4, 2]),
    )
    return plans.BitWidthPlan(
        world_size=2,
        planner="example",
        channels=channels,
        forward_covers_backward=True,
        predicted_s={"forward1": 1e-3},
        weight_sigma={"forward1": 1.5},
    )


def predict_bitwidth(plan):
    link = LinkCost(latency_s=1e-4, s_per_byte=1e-6)
    return predict(plan, None, Links.of_pairs(link, plan.world_size))


def broken_bitwidth():
    plan = bitwidth()
    wrong = msgspec.structs.replace(plan.channels[2], bits=b"\x01\x02\x07")
    return msgspec.structs.replace(
        plan, channels=(*plan.channels[:2], wrong, plan.channels[3])
    ), "channels[2]"


def fusion() -> plans.FusionPlan:
    return plans.FusionPlan(
        world_size=2,
        planner="example",
        buckets=(
            plans.Bucket(parameters=("2.bias", "2.weight"), size_bytes=1_200_000, chunks=2),
            plans.Bucket(parameters=("0.bias", "0.weight"), size_bytes=800_000),
        ),
        fused_ops=(("0", "1"),),
        regions=(("mul",), ("mul", "add")),
        precision="bfloat16",
        recompute=("0",),
        accumulation=2,
        predicted_step_s=0.01,
    )


def predict_fusion(plan):
    modules = [
        Module(name=str(i), forward_s=1e-3, backward_s=2e-3, gradient_bytes=size, parameters=names)
        for i, (size, names) in enumerate(
            [(800_000, ("0.weight", "0.bias")), (0, ()), (1_200_000, ("2.weight", "2.bias"))]
        )
    ]
    job = ModuleTrace(modules=modules, hosts=range(plan.world_size), fused_share=0.8)
    # Operators are another grain: see tests/conformance/test_predict.py.
    whole = msgspec.structs.replace(plan, regions=())
    return predict(whole, job, Links.uniform(plan.world_size, 1e8, 1e-4))


def broken_fusion():
    plan = fusion()
    wrong = msgspec.structs.replace(plan.buckets[1], parameters=("0.bias", "2.bias"))
    return msgspec.structs.replace(plan, buckets=(plan.buckets[0], wrong)), "buckets[1]"


def cache() -> plans.CachePlan:
    def machine(number, ids):
        rows = [0.0, 0.0]
        rows[1 - number] = 40.0
        fetched = tuple(0.5 * row for row in rows)
        return plans.MachineCache(
            nodes=pack_node_ids(np.array(ids)), budget=3, needed=tuple(rows), fetched=fetched
        )

    return plans.CachePlan(
        world_size=2,
        planner="vip",
        machines=(machine(0, [5, 7, 9]), machine(1, [0, 2])),
        num_nodes=10,
        owner=owner_digest(np.arange(10) // 5),
        fanouts=(5, 3),
        batch_size=2,
        batches=3,
    )


def predict_cache(plan):
    return predict(plan, BatchTimes(row_bytes=400), Links.uniform(plan.world_size, 1e8, 1e-4))


def broken_cache():
    plan = cache()
    wrong = msgspec.structs.replace(plan.machines[1], nodes=pack_node_ids(np.array([2, 0])))
    return msgspec.structs.replace(plan, machines=(plan.machines[0], wrong)), "$.machines[1]"


def collective() -> plans.CollectivePlan:
    return plans.CollectivePlan(
        world_size=2,
        planner="example",
        program=build("all_reduce", "ring", 2),
        size_bytes=1_000_000,
        topology="lab-2",
        bound_s=0.01,
        predicted_s=0.02,
        certificate=plans.Certificate(cut=(0,), bandwidth_bytes_per_s=1e8),
        candidates=(plans.Candidate(name="ring", predicted_s=0.02),),
    )


def predict_collective(plan):
    return predict(plan, None, Links.of(lab_hosts(["800mbit"] * plan.world_size)))


def broken_collective():
    plan = collective()
    wrong = msgspec.structs.replace(plan.program, transfers=plan.program.transfers[1:])
    return msgspec.structs.replace(plan, program=wrong), "$.program"


def placement() -> plans.PlacementPlan:
    return plans.PlacementPlan(
        world_size=2,
        planner="gnn-tasks",
        hosts=("host0", "host1"),
        tasks=(
            plans.PlacedTask(name="store", kind="store", host=0),
            plans.PlacedTask(name="sampler", kind="sampler", host=1, demand={"cpu": 2.0}),
            plans.PlacedTask(name="worker", kind="worker", host=1, demand={"gpu": 1.0}),
        ),
        policy="iter",
        iterations=3,
        prefetch=2,
        predicted_s=0.4,
        colocated_s=0.5,
        lower_bound_s=0.3,
        competitive_ratio=2.0,
    )


def predict_placement(plan):
    tasks = TaskSet(
        iterations=plan.iterations,
        tasks=(
            TrainingTask(name="store", kind="store"),
            TrainingTask(name="sampler", kind="sampler", worker="worker", demand={"cpu": 2.0}),
            TrainingTask(name="worker", kind="worker", execution_s=0.1, demand={"gpu": 1.0}),
        ),
        flows=(Flow(source="store", target="sampler", size_bytes=1e6),),
    )
    return predict(plan, tasks, Links.uniform(plan.world_size, 1e8))


def broken_placement():
    plan = placement()
    wrong = msgspec.structs.replace(plan.tasks[1], host=2)
    return msgspec.structs.replace(plan, tasks=(plan.tasks[0], wrong, plan.tasks[2])), "$.tasks[1]"


def stages() -> plans.StagePlan:
    plan = plans.StagePlan.from_cuts(
        ["a", "b", "c"], [2], style="2bw", microbatches=3, microbatch_size=2, replicas=2, exchange="hidden"
    )
    return msgspec.structs.replace(
        plan, planner="example", predicted_s=0.03, predicted_bytes=(9_000_000, 5_000_000)
    )


def predict_stages(plan, links=None):
    modules = tuple(
        StageModule(
            name=name,
            forward_s=(1e-3,),
            backward_s=(2e-3,),
            output_bytes=1e5,
            parameter_bytes=1e6,
            optimizer_s=1e-4,
        )
        for name in ("a", "b", "c")
    )
    links = Links.uniform(plan.world_size, 1e8, 1e-4) if links is None else links
    return predict(plan, StageTrace(modules=modules), links)


def broken_stages():
    plan = stages()
    rows = (plan.timetable[0], plan.timetable[1][::-1])
    return msgspec.structs.replace(plan, timetable=rows), "$.timetable[1]"


def recovery() -> plans.RecoveryPlan:
    """Two stages by logs, and one that has two replicas."""

    def log(source, target, tier):
        return plans.MessageLog(source=source, target=target, tier=tier, bytes_per_step=2e6)

    return plans.RecoveryPlan(
        world_size=4,
        planner="example",
        stages=(
            plans.StageRecovery(ranks=(0,), strategy="log", group=0),
            plans.StageRecovery(ranks=(1,), strategy="log", group=1),
            plans.StageRecovery(ranks=(2, 3), strategy="replica", group=1),
        ),
        logs=(log(0, 1, "memory"), log(1, 0, "disk")),
        interval_steps=30,
        helpers=1,
        mtbf_s=60.0,
    )


def predict_recovery(plan):
    stage = {"compute_s": 0.02, "optimizer_s": 0.001, "state_bytes": 2e7, "gradient_bytes": 5e6}
    pairs = ((0, 1), (1, 0), (1, 2), (2, 1))
    job = RecoveryTrace(
        stages=tuple(ProtectedStage(ranks=ranks, **stage) for ranks in ((0,), (1,), (2, 3))),
        messages=tuple(StageMessages(source=a, target=b, size_bytes=2e6) for a, b in pairs),
        step_s=0.05,
        microbatches=4,
        silent_share=0.1,
        consistency_s={"ping-pong": 1e-3},
    )
    return predict(plan, job, Links.uniform(4, 1e10, 1e-4))


def broken_recovery():
    plan = recovery()
    wrong = msgspec.structs.replace(plan.logs[1], source=2)
    return msgspec.structs.replace(plan, logs=(plan.logs[0], wrong, wrong)), "$.logs[2]"


def reshard() -> plans.ReshardPlan:
    """One tensor to two ranks along a chain, another to the first of them alone."""
    whole = plans.parse_sharding("1:R,R")
    tensors = tuple(
        plans.LaidOutTensor(
            name=name, shape=(2, 4), dtype="float32", source=whole, target=plans.parse_sharding(after)
        )
        for name, after in (("x", "2@1-2:R,R"), ("y", "1@1:R,R"))
    )

    def task(number, receivers, strategy, edges):
        tree = plans.MulticastTree(start=0, stop=32, sender=0, edges=edges)
        return plans.UnitTask(
            slices=(plans.TensorSlice(tensor=number, box=((0, 2), (0, 4))),),
            size_bytes=32,
            holders=((0,),),
            receivers=receivers,
            strategy=strategy,
            round=0,
            trees=(tree,),
        )

    return plans.ReshardPlan(
        world_size=3,
        planner="example",
        tensors=tensors,
        hosts=(0, 1, 2),
        tasks=(task(0, (1, 2), "ring", ((0, 1), (1, 2))), task(1, (1,), "p2p", ((0, 1),))),
        strategy="mixed",
        order="auto",
        chunk_bytes=65536,
        predicted_s=1e-3,
        bound_s=6.4e-6,
        busiest=plans.BusiestHosts(hosts=(0,), direction="out", size_bytes=64, bandwidth_bytes_per_s=1e7),
    )


def predict_reshard(plan):
    return predict(plan, None, Links.uniform(plan.world_size, 1e7, 1e-4))


def broken_reshard():
    plan = reshard()
    tree = msgspec.structs.replace(plan.tasks[1].trees[0], sender=2, edges=((2, 1),))
    wrong = msgspec.structs.replace(plan.tasks[1], trees=(tree,))
    return msgspec.structs.replace(plan, tasks=(plan.tasks[0], wrong)), "$.tasks[1]"


QUEUE = JobQueue(
    queue=(
        QueuedJob(name="a", kind="image", arrival=0),
        QueuedJob(name="b", kind="text", arrival=1, clusters=(1,)),
    ),
    kinds=edge_kinds(),
    clusters=(EdgeCluster(name="x", cpus=4, gpus=2), EdgeCluster(name="y", cpus=4, gpus=16)),
    slot_s=2.0,
)


def jobs() -> plans.JobPlan:
    """One job is moved there and back; slots after a move count half."""

    def had(job, cluster, gpus, start, end):
        return plans.JobAllotment(job=job, cluster=cluster, cpus=2, gpus=gpus, start=start, end=end)

    return plans.JobPlan(
        world_size=2,
        planner="example",
        allotments=(
            had("a", 0, 1, 0, 1),
            had("a", 1, 1, 1, 2),
            had("b", 1, 7, 1, 4),
            had("a", 0, 1, 2, 5),
        ),
        clusters=("x", "y"),
        slot_s=2.0,
        kept=0.5,
        mean_completion_s=8.0,
        predicted_s=10.0,
    )


def predict_jobs(plan):
    return predict(plan, QUEUE)


def broken_jobs():
    plan = jobs()
    wrong = msgspec.structs.replace(plan.allotments[3], start=1)
    return msgspec.structs.replace(plan, allotments=(*plan.allotments[:3], wrong)), "$.allotments[3]"


DEPLOYED = StageTrace(
    modules=(
        StageModule(
            name="a",
            forward_s=(1e-3,),
            backward_s=(2e-3,),
            output_bytes=1e4,
            parameter_bytes=1e5,
            factor_bytes=2e3,
            factored_bytes=1e5,
        ),
        StageModule(name="b", forward_s=(2e-3,), backward_s=(3e-3,), output_bytes=1e4, parameter_bytes=2e5),
        StageModule(name="c", forward_s=(1e-3,), backward_s=(2e-3,), output_bytes=1e4, parameter_bytes=1e5),
        StageModule(name="d", forward_s=(1e-3,), backward_s=(2e-3,), output_bytes=1e4, parameter_bytes=2e5),
        StageModule(name="e", forward_s=(1e-3,), backward_s=(2e-3,), parameter_bytes=1e6),
    )
)


def deployment() -> plans.DeploymentPlan:
    return plans.DeploymentPlan(
        world_size=3,
        planner="example",
        batch=8,
        devices=tuple(
            plans.DeployedDevice(
                name=f"gpu{i}", host=f"host{i}", type="v100", speed=1.0 + i, memory_bytes=1e8
            )
            for i in range(3)
        ),
        groups=(
            plans.DeployedGroup(
                ops=("a",),
                devices=(0, 2),
                communication="duplicate",
                rows=(2, 6),
                duplicated=("a",),
                priority=1,
            ),
            plans.DeployedGroup(ops=("b",), devices=(0, 1), communication="ps", rows=(3, 5), owners=(1,)),
            plans.DeployedGroup(ops=("c",), devices=(1,), communication="mp", owners=(1,)),
            # While gradients of e travel, those of d and factors of a begin to wait.
            plans.DeployedGroup(ops=("d",), devices=(0, 2), communication="allreduce", rows=(3, 5)),
            plans.DeployedGroup(ops=("e",), devices=(0, 2), communication="allreduce", rows=(3, 5)),
        ),
        predicted_step_s=1.0,
        baseline_step_s=2.0,
        predicted_bytes=(1, 2, 3),
    )


def predict_deployment(plan):
    slow = msgspec.structs.replace(
        DEPLOYED,
        modules=tuple(
            msgspec.structs.replace(m, forward_s=(3 * m.forward_s[0],), backward_s=(3 * m.backward_s[0],))
            for m in DEPLOYED.modules
        ),
    )
    return predict(plan, DEPLOYED, Links.uniform(3, 1e7, 1e-4), profiles={"v100": slow})


def broken_deployment():
    plan = deployment()
    wrong = msgspec.structs.replace(plan.groups[1], owners=(2,))
    return msgspec.structs.replace(plan, groups=(plan.groups[0], wrong, *plan.groups[2:])), "$.groups[1]"


SPLIT = OperatorGraph(
    nodes=tuple(
        OperatorNode(
            name=name,
            op=op,
            inputs=inputs,
            roles=tuple(map(str, inputs)),
            shape=shape,
            phase=phase,
            source=source,
            time_s=seconds,
        )
        for name, op, inputs, shape, phase, source, seconds in (
            ("x", "input", (), (8, 8), "forward", "0", 0.0),
            ("w", "parameter", (), (8, 8), "forward", "w", 0.0),
            ("y", "aten.mm.default", (0, 1), (8, 8), "forward", "", 4e-3),
            ("z", "aten.relu.default", (2,), (8, 8), "forward", "", 2e-3),
            ("loss", "aten._softmax.default", (3,), (), "forward", "", 1e-3),
            ("one", "aten.ones_like.default", (4,), (), "backward", "", 1e-3),
            ("dz", "aten.threshold_backward.default", (5, 3), (8, 8), "backward", "", 3e-3),
            ("dw", "aten.mm.default", (0, 6), (8, 8), "backward", "", 4e-3),
            ("end", "output", (4, 7), (), "backward", "", 0.0),
        )
    ),
    loss=4,
    gradients={"w": 7},
)


def parallel() -> plans.ParallelPlan:
    def step(kind, mesh_dim=0, size=10_000, sent=10_000):
        return plans.MoveStep(kind=kind, mesh_dim=mesh_dim, size_bytes=size, sent_bytes=sent)

    send = step("send", -1)
    return plans.ParallelPlan(
        world_size=4,
        planner="example",
        graph=SPLIT.digest,
        mesh=(2,),
        mesh_names=("model",),
        ranks=((0, 1), (2, 3)),
        microbatches=2,
        stage_of=(0, 0, 0, 1, 1, 1, 1, 0, 0),
        placements=(("S1",), ("S0",), ("P",), ("R",), ("R",), ("R",), ("R",), ("P",), ("R",)),
        moves=(
            plans.Move(
                producer=2, consumers=(3,), source=("P",), target=("R",), steps=(send, step("all_reduce"))
            ),
            plans.Move(producer=6, consumers=(7,), source=("R",), target=("R",), steps=(send,)),
            plans.Move(
                producer=7,
                consumers=(8,),
                source=("P",),
                target=("S0",),
                steps=(step("reduce_scatter", size=400_000, sent=200_000),),
                once=True,
            ),
        ),
        inner={4: (step("all_to_all"),)},
        recompute=(3,),
    )


def predict_parallel(plan):
    return predict(
        plan,
        SPLIT,
        Links.uniform(2, 1e7, 1e-4, intra_bytes_per_s=1e8, intra_latency_s=1e-5, ranks_per_host=2),
    )


def broken_parallel():
    plan = parallel()
    wrong = msgspec.structs.replace(plan.moves[1], consumers=(12,))
    return msgspec.structs.replace(plan, moves=(plan.moves[0], wrong)), "$.moves[1]"


EXAMPLES = {
    "parallel": parallel,
    "deployment": deployment,
    "jobs": jobs,
    "bitwidth": bitwidth,
    "cache": cache,
    "collective": collective,
    "fusion": fusion,
    "placement": placement,
    "recovery": recovery,
    "stages": stages,
    "reshard": reshard,
}
BROKEN = {
    "parallel": broken_parallel,
    "deployment": broken_deployment,
    "jobs": broken_jobs,
    "bitwidth": broken_bitwidth,
    "cache": broken_cache,
    "collective": broken_collective,
    "fusion": broken_fusion,
    "placement": broken_placement,
    "recovery": broken_recovery,
    "stages": broken_stages,
    "reshard": broken_reshard,
}
PREDICTIONS = {
    "parallel": predict_parallel,
    "deployment": predict_deployment,
    "jobs": predict_jobs,
    "bitwidth": predict_bitwidth,
    "cache": predict_cache,
    "collective": predict_collective,
    "fusion": predict_fusion,
    "placement": predict_placement,
    "recovery": predict_recovery,
    "stages": predict_stages,
    "reshard": predict_reshard,
}

FAMILIES = pytest.mark.parametrize("family", sorted(plans.PLANS))


def ranks(count):
    return SimpleNamespace(
        hosts=[f"host{i}" for i in range(count)], devices=[f"cpu{i}" for i in range(count)]
    )


def test_every_family_has_an_example():
    assert set(EXAMPLES) == set(BROKEN) == set(PREDICTIONS) == set(plans.PLANS)


@FAMILIES
def test_json_reads_back_equal(family, tmp_path):
    plan = EXAMPLES[family]()
    assert type(plan) is plans.PLANS[family]
    assert plan.family == family
    assert plans.loads(plan.to_json()) == plan
    assert type(plan).from_json(plan.to_json()) == plan
    assert plans.Plan.from_json is not None
    plans.save(plan, tmp_path / "plan.json")
    assert plans.load(tmp_path / "plan.json") == plan


@FAMILIES
def test_check_accepts_what_fits(family):
    plan = EXAMPLES[family]()
    plan.check(ranks(plan.world_size))


@FAMILIES
def test_check_names_both_world_sizes(family):
    plan = EXAMPLES[family]()
    with pytest.raises(PlanError, match=f"{plan.world_size}.*{plan.world_size + 1}"):
        plan.check(ranks(plan.world_size + 1))


@FAMILIES
def test_check_shows_the_faulty_place(family):
    plan, place = BROKEN[family]()
    with pytest.raises(PlanError) as caught:
        plan.check(ranks(plan.world_size))
    assert place in str(caught.value)


@FAMILIES
def test_a_plan_is_frozen(family):
    with pytest.raises(AttributeError):
        EXAMPLES[family]().planner = "other"


@FAMILIES
def test_it_can_be_predicted(family):
    found = PREDICTIONS[family](EXAMPLES[family]())
    assert found.step_s > 0
    assert found.timeline.seconds == pytest.approx(found.step_s)
    assert (found.family, found.source) == (family, "simulated")


@FAMILIES
def test_it_can_be_drawn(family):
    plan = EXAMPLES[family]()
    titles, rows = plan.table()
    assert rows
    assert all(len(row) == len(titles) for row in rows)
    assert plan.planner in plan.summary()
    assert len(plan.summary().splitlines()) == len(rows) + 2
