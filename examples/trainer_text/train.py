"""A tiny language model under transformers' Trainer, as users write it; wirewise is not in it.

torchrun --nproc-per-node 2 examples/trainer_text/train.py
wirewise profile trace -o run -- torchrun --nproc-per-node 2 examples/trainer_text/train.py
"""

import argparse

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments


class Counting(Dataset):
    """Sequences of numbers in a row."""

    def __len__(self):
        return 256

    def __getitem__(self, number):
        ids = (torch.arange(16) + number) % 50
        return {"input_ids": ids, "labels": ids}


parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=40)
parser.add_argument("--out", default="trainer_out", help="Folder of the weights.")
options = parser.parse_args()
torch.manual_seed(0)
model = GPT2LMHeadModel(GPT2Config(vocab_size=50, n_positions=16, n_embd=32, n_layer=2, n_head=2))
arguments = TrainingArguments(
    output_dir=options.out,
    max_steps=options.steps,
    per_device_train_batch_size=4,
    use_cpu=True,
    save_strategy="no",
    report_to=[],
    disable_tqdm=True,
    logging_strategy="no",
)
trainer = Trainer(model=model, args=arguments, train_dataset=Counting())
trainer.train()
trainer.save_model()
