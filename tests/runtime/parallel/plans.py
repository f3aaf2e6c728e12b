"""Parallel plans written by hand: the batch in parts, modules in stages."""

from __future__ import annotations

import msgspec

from wirewise.plans.parallel import Move, MoveStep, ParallelPlan

FACTORIES = ("aten.ones_like.default", "aten.full.default")


def data_parallel(step, smaller, ranks):
    """Every tensor that is smaller in the step of a smaller batch is in parts; what is made of parts alone is a sum.

    Args:
        step: Step that was captured.
        smaller: Captured step of a smaller batch.
        ranks: Number of ranks.
    """
    nodes, places = step.graph.nodes, []
    for node, less in zip(nodes, smaller.graph.nodes, strict=True):
        if node.op == "getitem":
            words = places[node.inputs[0]][0].split(",")
            places.append((words[node.arguments["index"] if len(words) > 1 else 0],))
            continue
        words = []
        for shape, other in zip(node.parts or (node.shape,), less.parts or (less.shape,), strict=True):
            cut = next((f"S{d}" for d, (a, b) in enumerate(zip(shape, other, strict=True)) if a != b), "")
            sums = any(word != "R" for i in node.inputs for word in places[i][0].split(","))
            sums &= node.op not in ("output", *FACTORIES)
            words.append(cut or ("P" if sums else "R"))
        places.append((words[0] if len(set(words)) == 1 else ",".join(words),))
    moves = []
    for number, node in enumerate(nodes):
        if places[number] == ("P",):
            users = [user for user in step.graph.users[number] if places[user] != ("P",)]
            sent = 2 * node.output_bytes * (ranks - 1) // ranks
            how = MoveStep(kind="all_reduce", mesh_dim=0, size_bytes=node.output_bytes, sent_bytes=sent)
            if users:
                moves.append(
                    Move(producer=number, consumers=tuple(users), source=("P",), target=("R",), steps=(how,))
                )
    return ParallelPlan(
        world_size=ranks,
        planner="by hand",
        graph=step.graph.digest,
        mesh=(ranks,),
        mesh_names=("data",),
        ranks=(tuple(range(ranks)),),
        stage_of=(0,) * len(nodes),
        placements=tuple(places),
        moves=tuple(moves),
    )


def whole(step, ranks=1):
    """Everything whole on every rank."""
    nodes = step.graph.nodes
    return ParallelPlan(
        world_size=ranks,
        planner="by hand",
        graph=step.graph.digest,
        mesh=(ranks,),
        mesh_names=("data",),
        ranks=(tuple(range(ranks)),),
        stage_of=(0,) * len(nodes),
        placements=(("R",),) * len(nodes),
    )


def in_stages(step, plan, stage_of_module, stages):
    """A plan of one stage with its nodes dealt out to several of as many ranks each.

    Args:
        step: Step that was captured.
        plan: Plan of one stage.
        stage_of_module: Function from a module's name to its stage; None: that of what it takes.
        stages: Number of stages.
    """
    nodes, stage = step.graph.nodes, {}
    for number, node in enumerate(nodes):
        known = stage_of_module(node.module)
        before = [stage[i] for i in node.inputs if nodes[i].computes and nodes[i].phase == node.phase]
        if node.phase == "forward":
            stage[number] = max([*before, known or 0])
        else:
            stage[number] = min([*before, stages - 1 if known is None else known])
    for number, node in enumerate(nodes):
        if node.op == "parameter":
            stage[number] = stage[step.graph.gradients[node.source]]
        elif node.op in ("input", "buffer", "constant"):
            stage[number] = min(stage[user] for user in step.graph.users[number])
    moves = []
    own = {(move.producer, consumer): move for move in plan.moves for consumer in move.consumers}
    for number in range(len(nodes)):
        groups = {}
        for user in step.graph.users[number]:
            move = own.get((number, user))
            if user == len(nodes) - 1:
                if move is not None:
                    moves.append(msgspec.structs.replace(move, consumers=(user,)))
            elif move is not None or stage[user] != stage[number]:
                groups.setdefault((stage[user], move.target if move else plan.placements[number]), []).append(
                    user
                )
        for (target_stage, target), users in groups.items():
            before = next((own[number, u].steps for u in users if (number, u) in own), ())
            send = (MoveStep(kind="send", size_bytes=nodes[number].output_bytes),)
            moves.append(
                Move(
                    producer=number,
                    consumers=tuple(users),
                    source=plan.placements[number],
                    target=target,
                    steps=before + (send if target_stage != stage[number] else ()),
                )
            )
    ends = [stage[number] for number in range(len(nodes) - 1)]
    return msgspec.structs.replace(
        plan,
        world_size=plan.world_size * stages,
        ranks=tuple(tuple(range(s * plan.world_size, (s + 1) * plan.world_size)) for s in range(stages)),
        stage_of=(*ends, stage[step.graph.loss]),
        moves=tuple(moves),
    )
