"""What training scripts do around a parallel model: groups, clipping, scaled losses, own rows, checkpoints."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.nn import functional

from tests.harness.processes import run_ranks_as_processes
from tests.runtime.parallel.plans import data_parallel, in_stages
from tests.runtime.parallel.ranks import on_mesh
from wirewise.cost.links import Links
from wirewise.errors import PlanError
from wirewise.planners.parallel.rhino.users_ways import plan_of_way
from wirewise.runtime.joint_graph import capture_step
from wirewise.runtime.parallel import GradScaler, checkpointable, parallelize
from wirewise.runtime.parallel.microbatches import of_microbatch
from wirewise.runtime.parallel.rows import rows_of_rank
from wirewise.runtime.parallel.step import StepRunner
from wirewise.sim.operator_times import DeviceFigures, roofline_times

SLOW = DeviceFigures(1e8, 1e8, 1e9, 1e-6)


class Attention(nn.Module):
    """Query, key and value of one matrix, which plans cut in blocks."""

    def __init__(self):
        super().__init__()
        # Without a bias: that of keys has no gradient but noise, which Adam would scale up.
        self.joined, self.out = nn.Linear(16, 48, bias=False), nn.Linear(16, 16)

    def forward(self, x):
        q, k, v = (one.unflatten(-1, (4, 4)).transpose(1, 2) for one in self.joined(x).chunk(3, -1))
        attended = functional.scaled_dot_product_attention(q, k, v)
        return x + self.out(attended.transpose(1, 2).flatten(2))


def made(rows=8):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), Attention(), nn.LayerNorm(16), nn.Linear(16, 4))
    own = torch.Generator().manual_seed(1)
    batch = (torch.randn(rows, 6, 8, generator=own), torch.randint(4, (rows, 6), generator=own))
    return model, batch


def loss_of(model, inputs):
    return functional.cross_entropy(model(inputs[0]).flatten(0, 1), inputs[1].flatten())


def captured(rows=8):
    return capture_step(*made(rows), loss_of)


def stage_of_module(name):
    return None if not name else int(int(name.partition(".")[0]) > 1)


def plans():
    step = captured()
    whole = data_parallel(step, captured(4), 2)
    alone = data_parallel(step, captured(4), 1)
    cuts = {"1.joined.weight": "S0/3", "1.out.weight": "S1"}
    return {
        "rows": whole,
        "stages": in_stages(step, alone, stage_of_module, 2),
        "heads": plan_of_way("tensor", roofline_times(step.graph, SLOW), Links.uniform(2, 1e10, 1e-6), cuts),
    }


def groups(model):
    named = list(model.named_parameters())
    decayed = [p for name, p in named if not name.endswith("bias")]
    plain = [p for name, p in named if name.endswith("bias")]
    return torch.optim.AdamW([{"params": decayed, "weight_decay": 0.3}, {"params": plain}], lr=0.02)


@dataclass
class Script:
    """A training script; `call` gives the loss, `clip` clips, `scaler` scales."""

    model: Any
    call: Any
    clip: Any
    scaler: Any

    def run(self, batches):
        optimizer, found = groups(self.model), []
        self.optimizer = optimizer
        for number, batch in enumerate(batches):
            optimizer.zero_grad()
            loss = self.call(self.model, batch)
            # A loss that overflows in the second step: all ranks leave that update out.
            self.scaler.scale(loss * (float("inf") if number == 1 else 1.0)).backward()
            self.scaler.unscale_(optimizer)
            norm = self.clip(self.model, 0.1)
            self.scaler.step(optimizer)
            self.scaler.update()
            norm = float(norm) if norm.isfinite() else -1.0  # inf or not a number, by the order of sums
            found.append((float(loss.detach()), norm, self.scaler.get_scale()))
        return found


def batches():
    own = torch.Generator().manual_seed(2)
    return [(torch.randn(8, 6, 8, generator=own), torch.randint(4, (8, 6), generator=own)) for _ in range(4)]


def wholly(model, inputs):
    return model(*inputs)


def own_rows(model, inputs):
    rows = model.own_rows()
    return model.of_own_rows(*(one[rows] for one in inputs))


def one_rank(rank, plans, folder):
    found = {}
    for name, plan in plans.items():
        model, inputs = made()
        parallel = parallelize(model, plan, capture_step(model, inputs, loss_of), timeout_s=30.0)
        script = Script(
            parallel,
            wholly if name == "heads" else own_rows,
            lambda model, most: model.clip_grad_norm_(most),
            GradScaler(parallel, init_scale=8.0),
        )
        found[name] = (script.run(batches()), len(parallel.own_rows()))
        if name == "heads":
            dcp.save(
                {"model": parallel.state_dict(), "optimizer": checkpointable(script.optimizer.state_dict())},
                checkpoint_id=folder / name,
            )
        else:
            dcp.save({"model": parallel.state_dict()}, checkpoint_id=folder / name)
    # The state of one mesh goes on under another.
    model, inputs = made()
    parallel = parallelize(model, plans["rows"], capture_step(model, inputs, loss_of), timeout_s=30.0)
    state = {"model": parallel.state_dict()}
    dcp.load(state, checkpoint_id=folder / "heads")
    parallel.load_state_dict(state["model"])
    return found, float(parallel.get_parameter("1.joined.weight").full_tensor().sum())


@pytest.mark.dist
@pytest.mark.slow
def test_groups_clipping_scaled_losses_rows_and_checkpoints_are_those_of_one_process(tmp_path):
    made_plans = plans()
    assert any("/" in word for words in made_plans["heads"].placements for word in words)
    model, _ = made()
    wanted = Script(
        model,
        loss_of,
        lambda model, most: nn.utils.clip_grad_norm_(model.parameters(), most),
        torch.amp.GradScaler("cpu", init_scale=8.0),
    ).run(batches())
    assert [scale for _, _, scale in wanted] == [8.0, 4.0, 4.0, 4.0]
    for rank, (found, total) in enumerate(run_ranks_as_processes(2, one_rank, made_plans, tmp_path)):
        for name, (own, rows) in found.items():
            for got, one in zip(own, wanted, strict=True):
                assert got == pytest.approx(one, rel=1e-4), name
            assert rows == {"rows": 4, "stages": 0 if rank else 8, "heads": 8}[name], (rank, name)
        assert total == pytest.approx(float(model[1].joined.weight.detach().sum()), abs=1e-4)
    for name in made_plans:
        plain, _ = made()
        state = {"model": plain.state_dict()}
        dcp.load(state, checkpoint_id=tmp_path / name, no_dist=True)
        for key, value in state["model"].items():
            torch.testing.assert_close(value, model.state_dict()[key], rtol=0, atol=1e-4, msg=f"{name} {key}")


def test_rows_of_a_rank_are_refused_where_all_are_needed():

    step = captured()
    plan = msgspec.structs.replace(data_parallel(step, captured(4), 2), microbatches=2)
    own, of_part = of_microbatch(plan, step, captured(4))

    def body(groups):
        return rows_of_rank(StepRunner(own, of_part, groups))

    with pytest.raises(PlanError, match="give every rank the whole batch"):
        on_mesh((2,), body)
