"""The transformer of `ddp_text` with Lightning, and gradients of one bit an element.

    torchrun --nproc-per-node 2 examples/lightning_text/train.py

Prints the loss every ten steps, and what a rank sent.
"""

import argparse
import importlib.util
from pathlib import Path

import lightning
import torch
from torch.utils.data import DataLoader

from wirewise.integrations.lightning import CompressedDDPStrategy

SPEC = importlib.util.spec_from_file_location(
    "ddp_text", Path(__file__).resolve().parents[1] / "ddp_text" / "train.py"
)
ddp_text = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(ddp_text)


class Module(lightning.LightningModule):
    def __init__(self, width, layers):
        super().__init__()
        self.net = ddp_text.Transformer(width, layers)
        self.loss_of = torch.nn.CrossEntropyLoss()

    def training_step(self, batch, number):
        codes, following = batch
        loss = self.loss_of(self.net(codes).flatten(0, 1), following.flatten())
        if number % 10 == 0 and self.global_rank == 0:
            print(f"step {self.global_step}: loss {loss.item():.3f}")
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=3e-4)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--codec", default="efsign")
    parser.add_argument("--save", help="Checkpoint to write after the last step.")
    parser.add_argument("--resume", help="Checkpoint to begin from.")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    strategy = CompressedDDPStrategy(codec=options.codec, process_group_backend="gloo")
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=2,
        strategy=strategy,
        max_steps=options.steps,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    data = DataLoader(ddp_text.Text(), batch_size=8, shuffle=True, drop_last=True)
    trainer.fit(Module(options.width, options.layers), data, ckpt_path=options.resume)
    if options.save:
        trainer.save_checkpoint(options.save)
    if trainer.is_global_zero:
        print(f"sent {strategy.compressed.bytes_sent} bytes")


if __name__ == "__main__":
    main()
