"""The transformer of `ddp_text` with Hugging Face Accelerate, and gradients of one bit an element.

    torchrun --nproc-per-node 2 examples/accelerate_text/train.py

Prints the loss every ten steps, and what a rank sent.
"""

import argparse
import importlib.util
from pathlib import Path

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader

from wirewise.integrations.accelerate import compress

SPEC = importlib.util.spec_from_file_location(
    "ddp_text", Path(__file__).resolve().parents[1] / "ddp_text" / "train.py"
)
ddp_text = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(ddp_text)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--codec", default="efsign")
    parser.add_argument("--save", help="Folder for the state after the last step.")
    parser.add_argument("--resume", help="Folder of a state to begin from.")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = ddp_text.Transformer(options.width, options.layers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    data = DataLoader(ddp_text.Text(), batch_size=8, shuffle=True, drop_last=True)
    model, optimizer, data = accelerator.prepare(model, optimizer, data)
    state = compress(accelerator, model, codec=options.codec)
    if options.resume:
        accelerator.load_state(options.resume)
    loss_of = torch.nn.CrossEntropyLoss()
    for step, (codes, following) in zip(range(options.steps), data, strict=False):
        with accelerator.accumulate(model):
            loss = loss_of(model(codes).flatten(0, 1), following.flatten())
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        if step % 10 == 0:
            accelerator.print(f"step {step}: loss {accelerator.gather(loss.detach()).mean():.3f}")
    if options.save:
        accelerator.save_state(options.save)
    if state is not None:
        accelerator.print(f"sent {state.bytes_sent} bytes")


if __name__ == "__main__":
    main()
