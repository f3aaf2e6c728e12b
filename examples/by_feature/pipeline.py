"""Train layers in pipeline stages that never drain, with two versions of the weights (PipeDream-2BW).

torchrun --nproc-per-node 2 examples/by_feature/pipeline.py
"""

import torch.distributed as dist
from torch import nn, optim, randn

from wirewise.plans import StagePlan
from wirewise.runtime.pipeline import Pipeline

dist.init_process_group("gloo")  # a rank a stage
ranks = dist.get_world_size()
layers = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.ReLU()) for _ in range(8)))
cuts = [8 * n // ranks for n in range(1, ranks)]
plan = StagePlan.from_cuts([*"01234567"], cuts, style="2bw", microbatches=8, microbatch_size=4)
stages = Pipeline(layers, plan, loss=nn.functional.mse_loss, optimizer=lambda p: optim.AdamW(p, lr=0.01))
for result in stages.train((randn(32, 64), randn(32, 64)) for _ in range(10)):  # a batch an update
    if result.loss is not None:  # it is on the last stage
        print(f"update {result.update}: loss {result.loss:.3f}")
stages.close()
dist.destroy_process_group()
