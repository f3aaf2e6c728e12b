"""A training script with known stalls: slept computing, storage of a fixed rate, slept preparing.

It knows nothing of how it is measured: `wirewise profile stalls` runs it unmodified.
"""

import argparse
import itertools
import os
import subprocess
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

from wirewise.lab import VirtualAccelerator


class Sleeper:
    """Sleeps so long in the mean; what one sleep takes too long comes off the next."""

    def __init__(self):
        self.owed_s = 0.0

    def sleep(self, seconds):
        self.owed_s += seconds
        start = time.perf_counter()
        if self.owed_s > 0:
            time.sleep(self.owed_s)
        self.owed_s -= time.perf_counter() - start


class Items(Dataset):
    """Items of `item_bytes` that storage gives a rank at a rate without bursts, prepared in a slept time."""

    def __init__(self, count, item_bytes, storage_rate, prep_s):
        self.count, self.item_bytes, self.prep_s = count, item_bytes, prep_s
        self.fetch_s = item_bytes / storage_rate if storage_rate else 0.0
        self.storage, self.processor = Sleeper(), Sleeper()

    def __len__(self):
        return self.count

    def fetch(self, index):
        if self.fetch_s:
            self.storage.sleep(self.fetch_s)
        return index.to_bytes(8, "little") + bytes(self.item_bytes - 8)

    def prepare(self, raw):
        if self.prep_s:
            self.processor.sleep(self.prep_s)
        return torch.tensor([float(raw[0])])

    def __getitem__(self, index):
        return self.prepare(self.fetch(index))


def shape_loopback(rate):
    """Make the loopback of a lab's host slow; refuses the one of the machine itself."""
    if int(os.environ.get("LOCAL_RANK", "0")) or not rate:
        return
    if not Path("/sys/class/net/net0").exists():
        raise SystemExit("--loopback needs a host of a lab: net0 is not there")
    shape = ["tbf", "rate", rate, "burst", "70kb", "latency", "200ms"]
    subprocess.run(["tc", "qdisc", "replace", "dev", "lo", "root", *shape], check=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--compute-s", type=float, default=0.04)
    parser.add_argument("--parameters", type=int, default=2500)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--items", type=int, default=4096)
    parser.add_argument("--item-bytes", type=int, default=20_000)
    parser.add_argument("--storage-rate", type=float, default=0.0, help="Bytes per second; 0: no limit.")
    parser.add_argument("--prep-s", type=float, default=0.0, help="Seconds of processing an item.")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--loopback", default="", help="Rate of the loopback, as tc writes it.")
    options = parser.parse_args()
    torch.set_num_threads(1)
    shape_loopback(options.loopback)
    dist.init_process_group("gloo")
    third = options.compute_s / 3
    network = VirtualAccelerator.uniform(
        options.layers, options.parameters, forward_s=third, backward_s=2 * third
    )
    # One bucket: it is full when the backward pass ends, so that all of its reduction is seen.
    model = DistributedDataParallel(network, bucket_cap_mb=1000)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    data = Items(options.items, options.item_bytes, options.storage_rate, options.prep_s)
    loader = DataLoader(
        data,
        batch_size=options.batch,
        sampler=DistributedSampler(data, drop_last=True),
        num_workers=options.workers,
        persistent_workers=options.workers > 0,
    )
    for epoch in itertools.count():
        loader.sampler.set_epoch(epoch)
        for batch in loader:
            optimizer.zero_grad()
            model(batch).mean().backward()
            optimizer.step()


if __name__ == "__main__":
    main()
