"""Train an encoder in the stages of a plan; `build` is what planners measure.

wirewise profile stages examples/split_encoder.py:build -o stages.json
wirewise plan pipeline stages.json --topology lab-4@1gbit --stages 4 -o plan.json
wirewise lab run --hosts 4 --link 1gbit -- examples/split_encoder.py plan.json
"""

import sys
import time

import torch
import torch.distributed as dist
from torch import nn

from wirewise import plans
from wirewise.runtime.pipeline import Pipeline

WIDTH, LENGTH = 128, 64


def build() -> tuple[nn.Module, torch.Tensor]:
    """Eight layers, and four samples of their input."""
    torch.manual_seed(0)
    layers = (nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, 0.0, batch_first=True) for _ in range(8))
    return nn.Sequential(*layers), torch.randn(4, LENGTH, WIDTH)


def main() -> None:
    """Train 20 updates and print the loss and the seconds of an update."""
    plan = plans.load(sys.argv[1])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")  # a rank a stage
    model, _ = build()
    stages = Pipeline(
        model, plan, loss=nn.functional.mse_loss, optimizer=lambda p: torch.optim.AdamW(p, lr=1e-3)
    )
    rows = plan.microbatches * plan.microbatch_size
    batches = ((torch.randn(rows, LENGTH, WIDTH), torch.zeros(rows, LENGTH, WIDTH)) for _ in range(20))
    start = time.perf_counter()
    for result in stages.train(batches):
        if result.loss is not None and result.update % 5 == 4:  # known on the last stage
            seconds = (time.perf_counter() - start) / (result.update + 1)
            print(f"update {result.update + 1}: loss {result.loss:.3f}, {seconds:.2f} s an update")
    stages.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
