"""Hugging Face's Trainer with a tiny GPT-2."""

import tempfile

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments


class Counting(Dataset):
    def __len__(self):
        return 4096

    def __getitem__(self, number):
        ids = (torch.arange(16) + number) % 50
        return {"input_ids": ids, "labels": ids}


torch.set_num_threads(1)
torch.manual_seed(0)
model = GPT2LMHeadModel(GPT2Config(vocab_size=50, n_positions=16, n_embd=32, n_layer=2, n_head=2))
with tempfile.TemporaryDirectory() as folder:
    asked = TrainingArguments(
        output_dir=folder, max_steps=1000, per_device_train_batch_size=4, use_cpu=True, save_strategy="no",
        report_to=[], disable_tqdm=True, logging_strategy="no", dataloader_pin_memory=False,
    )  # fmt: skip
    Trainer(model=model, args=asked, train_dataset=Counting()).train()
