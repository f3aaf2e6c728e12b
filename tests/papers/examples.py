"""Synthetic results: a usual one, and what can be odd about a result."""

import math

import msgspec

from wirewise.results import EpochRecord
from wirewise_papers.adaqp.records import ModeResult, RunResult

PHASES = {
    "pack": 0.01,
    "wire": 0.3,
    "unpack": 0.008,
    "central": 0.07,
    "marginal": 0.09,
    "reduce": 0.05,
    "plan": 0.001,
}


def mode(
    *,
    epochs: int = 20,
    epoch_s: float = 0.5,
    bits: dict[int, int] | None = None,
    reached: float | None = 8.0,
    accuracy: float = 0.75,
    evaluated: bool = True,
    diverges_at: int | None = None,
    bytes_sent: int = 100_000_000,
    kernel: int | None = 130_000_000,
) -> ModeResult:
    """A mode whose loss falls from 5 to 1; bits start at 8 and become `bits` after two epochs."""
    bits = bits or {32: 100}
    records = []
    for i in range(epochs):
        lost = diverges_at is not None and i >= diverges_at
        counts = {8: sum(bits.values())} if i < 2 and len(bits) > 1 else bits
        records.append(
            EpochRecord(
                epoch=i,
                loss=math.nan if lost else 1 + 4 * math.exp(-4 * i / epochs),
                train_s=epoch_s * (4 if i == 0 else 1),
                eval_s=0.2 if evaluated and i % 5 == 4 else 0.0,
                phases={k: v * epoch_s / 0.529 for k, v in PHASES.items()},
                bytes_sent=bytes_sent // epochs,
                bits=dict.fromkeys(("forward1", "forward2", "backward2", "backward1"), counts),
                accuracy={"train": 0.8, "validation": accuracy - 0.3 / (i + 1), "test": accuracy}
                if evaluated and i % 5 == 4
                else {},
            )
        )
    return ModeResult(
        epochs=records,
        epoch_s=epoch_s,
        epoch_s_quartiles=(epoch_s * 0.95, epoch_s * 1.1),
        time_to_reference_loss_s=reached,
        final_loss=math.nan if diverges_at is not None else 1.1,
        accuracy=accuracy,
        bytes_sent=bytes_sent,
        kernel_bytes_sent=kernel,
        mean_bits=sum(b * n for b, n in bits.items()) / sum(bits.values()),
        peak_memory_bytes=[4_000_000, 5_000_000],
        memory_model_bytes=[3_000_000, 3_500_000],
    )


USUAL = RunResult(
    dataset="debian",
    workers=4,
    hosts=4,
    network="lab",
    link_bytes_per_s=25e6,
    model="sage",
    hidden=128,
    layers=3,
    seed=0,
    epochs=20,
    graph={"nodes": 63666.0, "edges": 592962.0, "central_fraction": 0.6238},
    reference="fp32",
    modes={
        "fp32": mode(
            epoch_s=1.2, reached=24.0, accuracy=0.7546, bytes_sent=900_000_000, kernel=1_060_000_000
        ),
        "adaqp": mode(
            epoch_s=0.4,
            bits={1: 30, 2: 20, 4: 30, 8: 20},
            accuracy=0.7536,
            bytes_sent=150_000_000,
            kernel=340_000_000,
        ),
    },
    environment={"command": "wirewise run adaqp", "date": "2026-01-01 00:00 UTC", "torch": "2.9"},
    notes=["Devices are emulated by threads."],
)


def change(result: RunResult = USUAL, **fields: object) -> RunResult:
    """The result with other fields."""
    return msgspec.structs.replace(result, **fields)


def with_adaqp(**fields: object) -> RunResult:
    """The usual result with another adaqp mode; `epoch_s` is that of its epochs too."""
    usual = USUAL.modes["adaqp"]
    epoch_s = fields.get("epoch_s", usual.epoch_s)
    slower = 1.0 if math.isnan(epoch_s) else epoch_s / usual.epoch_s
    epochs = [msgspec.structs.replace(one, train_s=one.train_s * slower) for one in usual.epochs]
    other = msgspec.structs.replace(usual, **{"epochs": epochs, **fields})
    return change(modes={"fp32": USUAL.modes["fp32"], "adaqp": other})


HOSTILE = '<script>alert("1")</script>&[bold]'

EDGES = {
    "usual": USUAL,
    "one mode": change(modes={"fp32": USUAL.modes["fp32"]}),
    "no mode": change(modes={}),
    "reference not trained": change(reference="gone"),
    "loopback": change(
        network="loopback",
        link_bytes_per_s=None,
        modes={n: msgspec.structs.replace(m, kernel_bytes_sent=None) for n, m in USUAL.modes.items()},
    ),
    "never reached": with_adaqp(time_to_reference_loss_s=None),
    "diverged": change(modes={"fp32": USUAL.modes["fp32"], "adaqp": mode(diverges_at=4, reached=None)}),
    "all diverged": change(modes={"fp32": mode(diverges_at=0, reached=None)}),
    "not evaluated": change(
        modes={"fp32": mode(evaluated=False, epoch_s=1.2), "adaqp": mode(evaluated=False, epoch_s=0.4)}
    ),
    "one epoch": change(epochs=1, modes={"fp32": mode(epochs=1), "adaqp": mode(epochs=1, bits={2: 1, 8: 1})}),
    "no epochs": change(
        epochs=0, modes={"fp32": mode(), "adaqp": msgspec.structs.replace(mode(), epochs=[])}
    ),
    "one worker": change(
        workers=1, hosts=1, modes={"fp32": mode(bytes_sent=0), "adaqp": mode(bytes_sent=0, bits={4: 1})}
    ),
    "no memory": with_adaqp(peak_memory_bytes=[], memory_model_bytes=[], epoch_s=math.nan),
    "hostile": change(
        dataset=HOSTILE,
        reference=HOSTILE,
        modes={HOSTILE: USUAL.modes["fp32"], "b" + HOSTILE: USUAL.modes["adaqp"]},
        environment={"command": HOSTILE, HOSTILE: HOSTILE},
        notes=[HOSTILE],
    ),
}


def long_result(epochs: int = 1000, modes: int = 8) -> RunResult:
    """Many epochs and modes, with bits that change in every epoch."""
    made = {"fp32": mode(epochs=epochs)}
    for number in range(1, modes):
        base = mode(epochs=epochs, bits={1: 1, 2: 1})
        records = [
            msgspec.structs.replace(
                r, bits={name: {2**b: 10 + (r.epoch * (b + 1)) % 7 for b in range(6)} for name in r.bits}
            )
            for r in base.epochs
        ]
        made[f"mode{number}"] = msgspec.structs.replace(base, epochs=records)
    return change(modes=made, epochs=epochs)
