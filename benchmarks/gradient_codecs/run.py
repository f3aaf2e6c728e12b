"""Claims about the gradient codecs: speed of the numba kernels against torch operations, on one thread.

    python benchmarks/gradient_codecs/run.py --preset smoke|paper [--device cpu|cuda] [--out FILE.md] [--only CODEC,...]

One segment of 4 Mi elements ("paper"). Every round runs, in one process, a copy of the float32 bytes, the torch
operations and the kernel of each codec, one after another; before each of them 96 MiB are read, so that its data is in
no cache and nobody else's writes wait there. Times are those of the processor, so that what else runs on the machine
takes no turns in them, and of the first of five runs before and behind which a short reference took what it takes at
best, so that nobody used the core's other thread; where none was so, of the last. Figures are medians over rounds,
ratios medians of the ratios of a round. Encoding includes the residual (v = gradient + residual; residual = v - sent)
for codecs with feedback; decoding is of one payload into a buffer that is there. The torch operations are what a user
would write: sparse ones do not sort, random ones draw with torch.rand, and random-k draws with replacement. DGC
includes momentum correction, PowerSGD both rounds of a square matrix with the factor of the step before. "checked" is
encoding of a gradient that the caller has seen to be finite, as where the own reducer copied it into its buffer; the
row "copy" has that copy, which checks on its way, in place of a kernel, against torch's plain copy. Kernels are to be
five times as fast as the torch operations, where memory allows it.

With `--device cuda` the kernels are Triton's, one segment has 64 Mi elements ("paper"), more than its caches hold, and
times are those of the device, between two events; the copy that checks is one of the processor.
"""

import sys
import time
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch

from common import Page, arguments, verdict
from wirewise.codec.gradients import CODECS, Segments, copy_checked, make
from wirewise.profile.undisturbed import is_undisturbed

PRESETS = {
    "smoke": {"elements": 1 << 16, "rounds": 3},
    "paper": {"elements": 1 << 22, "rounds": 15},
}
CUDA_ELEMENTS = 1 << 26
"""Elements of the paper preset on a GPU."""
RATIO, LEVELS, RANK, MOMENTUM = 0.01, 64, 4, 0.9
CLAIM = 5.0
TRIES = 5
"""Tries of an operation in a round, until nothing disturbs it."""
COPY_BYTES = {"cpu": 12, "cuda": 8}
"""Bytes that a copy of an element moves: a processor fetches its target before it is overwritten."""
BYTES = {
    "fp16": 20, "bf16": 20, "topk": 20, "dgc": 24, "randomk": 20, "efsign": 20, "signsgd": 4,
    "signum": 16, "onebit": 20, "qsgd": 22, "terngrad": 20, "int8": 18, "int4": 17, "powersgd": 28,
}  # fmt: skip
"""Least bytes that encoding an element moves: 4 to read the gradient or a buffer, 4 to write one, and twice its own
for each byte of the payload that was not read before. Gradients are read twice where only that keeps the buffers as
they were when something is not finite, or where a segment's scale must be known first; PowerSGD's matrix is read once
more for its second product, and read and written for what is left of it."""
LOOK_BYTES = 4
"""Bytes among them that only look at the gradient: saved where it was checked."""
WRITTEN_BYTES = {"fp16": 2, "bf16": 2, "qsgd": 1, "int8": 1, "int4": 0.5}
"""Bytes among them that a GPU does not move, since it does not fetch a payload before it is overwritten."""
BOUND = (
    "bytes are those that encoding an element moves through memory at the least, {} for a copy; the bound "
    'is their time at the speed of the copy, and "torch / bound" about the most that a kernel could gain. '
)
TIMES = {
    "cpu": "Times are of the processor, one thread; 96 MiB are read before each operation",
    "cuda": "Times are of the device, between two events",
}
OTHER = torch.ones(24 << 20)
WEIGHTS = torch.tensor([1, 2, 4, 8, 16, 32, 64, 128], dtype=torch.uint8)


def torch_cast(dtype):
    def encode(v):
        sent = v.to(dtype)
        return sent, sent.float()

    return encode, lambda sent, out: out.copy_(sent)


def pick(v, places):
    sent = torch.zeros_like(v)
    values = v[places]
    sent[places] = values
    return (places, values), sent


def torch_top_k(v):
    return pick(v, torch.topk(v.abs(), int(RATIO * len(v)), sorted=False).indices)


def torch_random_k(v):
    return pick(v, torch.randint(len(v), (int(RATIO * len(v)),), device=v.device))


def scatter(payload, out):
    out.zero_().index_add_(0, *payload)


def bits_of(flags):
    return (flags.view(-1, 8).to(torch.uint8) * WEIGHTS.to(flags.device)).sum(dim=1, dtype=torch.uint8)


def flags_of(packed):
    return ((packed[:, None] & WEIGHTS.to(packed.device)) != 0).flatten()


def torch_sign(v):
    flags, scale = v >= 0, v.abs().mean()
    return (bits_of(flags), -scale, scale), torch.where(flags, scale, -scale)


def torch_plain_sign(v):
    return (bits_of(v >= 0), torch.tensor(-1.0), torch.tensor(1.0)), None


def torch_one_bit(v):
    flags = v >= 0
    low, high = v[~flags].mean(), v[flags].mean()
    return (bits_of(flags), low, high), torch.where(flags, high, low)


def choose(payload, out):
    packed, low, high = payload
    torch.where(flags_of(packed), high, low, out=out)


def torch_qsgd(v):
    norm = v.norm()
    codes = ((v.abs() * (LEVELS / norm) + torch.rand_like(v)).floor() * v.sign()).to(torch.int8)
    return (codes, norm / LEVELS), codes.float() * (norm / LEVELS)


def scale_codes(payload, out):
    torch.mul(payload[0], payload[1], out=out)


def torch_tern_grad(v):
    top = v.abs().max()
    codes = (torch.rand_like(v) * top < v.abs()) * v.sign()
    fields = (codes + 1).to(torch.uint8).view(-1, 4)
    return ((fields * WEIGHTS[::2].to(v.device)).sum(dim=1, dtype=torch.uint8), top), codes * top


def unpack_ternary(payload, out):
    fields = (payload[0][:, None] >> torch.tensor([0, 2, 4, 6], dtype=torch.uint8, device=out.device)) & 3
    torch.mul(fields.flatten().float() - 1, payload[1], out=out)


def torch_dgc(v):
    """Threshold of 1.1 k from samples, adapted up to four times."""
    magnitudes, wanted = v.abs(), int(RATIO * len(v))
    samples = magnitudes[
        torch.randint(len(v), (len(v) // (1000 if len(v) >= 1 << 20 else 100),), device=v.device)
    ]
    limit = samples.topk(max(1, int(1.1 * RATIO * len(samples)))).values[-1]
    for _ in range(4):
        places = (magnitudes >= limit).nonzero().flatten()
        if 0.7 * wanted <= len(places) <= 1.3 * wanted:
            break
        limit = limit * (1.03 if len(places) > wanted else 0.97)
    return (places, v[places]), places


def torch_blocks(most):
    def encode(v):
        rows = v.view(-1, 256)
        steps = rows.abs().amax(dim=1, keepdim=True) / most
        codes = (rows / steps).round().to(torch.int8)
        sent = (codes * steps).flatten()
        if most == 7:
            codes = (codes[:, :128] & 15) | (codes[:, 128:] << 4)
        return (codes, steps), sent

    return encode


def unpack_blocks(payload, out):
    codes, steps = payload
    if codes.shape[1] == 128:
        codes = torch.cat([(codes << 4) >> 4, codes >> 4], dim=1)
    torch.mul(codes, steps, out=out.view(-1, 256))


def torch_power_sgd():
    """Both rounds on a square matrix, begun with the factor of the step before."""
    factors = []

    def encode(v):
        matrix = v.view(int(len(v) ** 0.5), -1)
        start = factors.pop() if factors else torch.randn(matrix.shape[1], RANK, device=v.device)
        left = torch.linalg.qr(matrix @ start).Q
        right = matrix.T @ left
        factors.append(right)
        return (left, right), (left @ right.T).flatten()

    def decode(payload, out):
        left, right = payload
        torch.mm(left, right.T, out=out.view(len(left), -1))

    return encode, decode


PLAIN = {
    "fp16": torch_cast(torch.float16),
    "bf16": torch_cast(torch.bfloat16),
    "topk": (torch_top_k, scatter),
    "randomk": (torch_random_k, scatter),
    "efsign": (torch_sign, choose),
    "signsgd": (torch_plain_sign, choose),
    "signum": (torch_plain_sign, choose),
    "onebit": (torch_one_bit, choose),
    "qsgd": (torch_qsgd, scale_codes),
    "terngrad": (torch_tern_grad, unpack_ternary),
    "dgc": (torch_dgc, scatter),
    "int8": (torch_blocks(127), unpack_blocks),
    "int4": (torch_blocks(7), unpack_blocks),
    "powersgd": torch_power_sgd,
}


class Job:
    """Buffers of one codec and its four operations."""

    def __init__(self, name, elements, device="cpu"):
        self.codec, self.segments = make(name), Segments([elements])
        self.gradient, self.out = (new(elements, device=device) for new in (torch.randn, torch.empty))
        kept = self.codec.memories
        memory = torch.zeros(max(1, len(kept)), elements, device=device)
        self.memory = None if not kept else memory[0] if len(kept) == 1 else memory
        self.own_memory = None if self.memory is None else self.memory.clone()
        self.buffer = torch.empty(1, self.codec.size_bytes(self.segments), dtype=torch.uint8, device=device)
        plain = PLAIN[name]
        self.plain_encode, self.plain_decode = plain() if callable(plain) else plain
        self.plain = {kind: torch.zeros(elements, device=device) for kind in kept}
        self.payload = None
        self.operations = ["copy", "torch_encode", "encode", "torch_decode", "decode"]
        if self.codec.looks_first:
            self.operations.insert(3, "encode_checked")

    def torch_encode(self):
        rest, momentum = self.plain.get("residual"), self.plain.get("momentum")
        if rest is not None and momentum is not None:
            momentum.mul_(MOMENTUM).add_(self.gradient)
            self.payload, places = self.plain_encode(rest.add_(momentum))
            rest[places] = momentum[places] = 0.0
        elif momentum is not None:
            self.payload, _ = self.plain_encode(momentum.lerp_(self.gradient, 0.1))
        elif rest is not None:
            v = self.gradient + rest
            self.payload, sent = self.plain_encode(v)
            torch.sub(v, sent, out=rest)
        else:
            self.payload, _ = self.plain_encode(self.gradient)

    def torch_decode(self):
        self.plain_decode(self.payload, self.out)

    def encode_checked(self):
        self._all_rounds(self.own_memory, checked=True)

    def encode(self):
        self._all_rounds(self.memory, checked=False)

    def _all_rounds(self, memory, *, checked):
        self.codec.encode(self.gradient, memory, self.segments, self.buffer[0], step=1, checked=checked)
        for number in range(self.codec.rounds):
            self.codec.advance(number, self.buffer[0], self.gradient, memory, self.segments)

    def decode(self):
        self.codec.decode_sum(self.buffer, self.segments, self.out, step=1)

    def copy(self):
        self.out.copy_(self.gradient)


class Copying:
    """A copy that checks, instead of a codec."""

    operations = ("copy", "torch_check", "check")

    def __init__(self, elements):
        self.gradient, self.out = torch.randn(elements), torch.empty(elements)

    def copy(self):
        self.out.copy_(self.gradient)

    torch_check = copy

    def check(self):
        copy_checked(self.gradient, self.out)


class Calm:
    """Times of operations that had the core to themselves, as far as that could be waited for."""

    def __init__(self, device="cpu"):
        self.device, self.calm, self.all = device, 0, 0

    def seconds(self, operation):
        if self.device == "cuda":
            return on_device(operation)
        for _ in range(TRIES):
            OTHER.sum()
            before = is_undisturbed()
            start = time.thread_time()
            operation()
            taken = time.thread_time() - start
            if calm := before and is_undisturbed():
                break
        self.calm, self.all = self.calm + calm, self.all + 1
        return taken


def on_device(operation):
    """Seconds between two events of the GPU."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    operation()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1e3


def measure(jobs, rounds, calm):
    """Microseconds [rounds] by codec and operation; a first round warms up."""
    found = {name: {operation: [] for operation in job.operations} for name, job in jobs.items()}
    for turn in range(rounds + 1):
        for name, job in jobs.items():
            for operation in job.operations:
                taken = calm.seconds(getattr(job, operation))
                if turn:
                    found[name][operation].append(1e6 * taken)
    return found


def bytes_of(name, operation, device):
    if operation == "check":
        return COPY_BYTES[device]
    if operation not in ("encode", "encode_checked"):
        return None
    spared = LOOK_BYTES if operation == "encode_checked" else 0
    return BYTES[name] - spared - (WRITTEN_BYTES.get(name, 0) if device == "cuda" else 0)


def report(row, name, operation, times, device):
    way, _, checked = operation.partition("_")
    plain, fast, copy = (np.array(times[key]) for key in (f"torch_{way}", operation, "copy"))
    ratio = float(np.median(plain / fast))
    moved = bytes_of(name, operation, device)
    bound = copy * moved / COPY_BYTES[device] if moved else None
    claimed = "none"
    if way == "encode":
        allowed = float(np.median(plain / bound))
        claimed = verdict(ratio, least=CLAIM) if allowed >= CLAIM else f"memory allows {allowed:.1f}"
    told = f"{way}, {checked}" if checked else way
    row(
        name, told, f"{np.median(plain):.0f}", f"{np.median(fast):.0f}", f"{ratio:.1f}",
        f"{np.median(copy / fast):.2f}", moved or "", "" if bound is None else f"{np.median(bound / fast):.2f}",
        "" if bound is None else f"{np.median(plain / bound):.1f}", claimed,
    )  # fmt: skip


def main():
    args = arguments(__doc__, ["copy", *CODECS], device=["cpu", "cuda"])
    (device,) = args.device[:1]
    torch.set_num_threads(1)
    preset, kernels = PRESETS[args.preset], "triton" if device == "cuda" else "numba"
    if device == "cuda" and args.preset == "paper":
        preset = preset | {"elements": CUDA_ELEMENTS}
    facts = {
        "Device": torch.cuda.get_device_name() if device == "cuda" else "processor, one thread",
        "Elements": f"{preset['elements']} in one segment",
        "Rounds": str(preset["rounds"]),
        "Bound": BOUND.format(COPY_BYTES[device]) + TIMES[device],
    }
    page = Page("Gradient codecs against torch operations", args.preset, facts)
    makers = {"copy": Copying, **{name: partial(Job, name, device=device) for name in CODECS}}
    names = [name for name in args.only if device == "cpu" or name != "copy"]
    jobs = {name: makers[name](preset["elements"]) for name in names}
    calm = Calm(device)
    times = measure(jobs, preset["rounds"], calm)
    titles = (
        "codec", "way", "torch us", f"{kernels} us", f"torch / {kernels}", f"copy / {kernels}", "bytes",
        f"bound / {kernels}",
        "torch / bound", "encode at least 5x",
    )  # fmt: skip
    with page.table(*titles) as row:
        for name, job in jobs.items():
            for operation in job.operations:
                if f"torch_{operation.partition('_')[0]}" in job.operations:
                    report(row, name, operation, times[name], device)
    if device == "cpu":
        page.add(f"Undisturbed: {calm.calm / calm.all:.0%} of the operations.")
    page.finish(args)


if __name__ == "__main__":
    main()
