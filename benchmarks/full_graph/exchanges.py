"""Rows about the exchange alone: S1, S2, S3 and A5."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
from epoch_model import EpochModel
from exchange_worker import SERIAL, Case, Measured, Work

from common import Page, paired, scratch, spread, verdict
from wirewise import graph, lab, units
from wirewise.cost import fit_link

WORKER = str(Path(__file__).parent / "exchange_worker.py")
S1_CLAIMS = {
    "200mbit": {"uniform-8": 3.0, "uniform-4": 5.0, "uniform-2": 6.5},
    "1gbit": {"uniform-8": 2.2, "uniform-4": 3.0},
}
S1_COMPUTE = 0.02
S2_SHARE, S2_SHARE_WITHIN, S2_CLAIM = 0.6, 0.05, 0.85
S3_CLAIM = 0.7
A5_R_SQUARED, A5_PAYLOAD, A5_WITHIN = 0.98, 0.91, 0.10


def measure(case: Case, preset: dict, rate: str) -> Measured:
    """Run a case on two hosts."""
    with scratch() as folder:
        if case.modes:
            data = graph.load(f"block:nodes={2 * preset['rows']},p_in=0,mean_degree=12")
            graph.save_parts(data, graph.partition(data, 2, method="random", seed=0), folder / "parts")
        (folder / "case.json").write_bytes(msgspec.json.encode(case))
        with lab.Lab(2, rate) as network:
            result = network.run([WORKER, str(folder / "case.json")], launcher="direct", timeout_s=300)
        if not result.ok:
            raise SystemExit("\n".join(["a rank failed:", *(line for tail in result.tails for line in tail)]))
        return msgspec.json.decode((folder / "measured.json").read_bytes(), type=Measured)


def share(measured: Measured, mode: str, *phases: str) -> list[float]:
    """Share of each epoch that the mean rank spent in some phases."""
    rounds = zip(measured.phases[mode], measured.seconds[mode], strict=True)
    return [sum(p.get(name, 0.0) for name in phases) / s for p, s in rounds]


def phase_s(measured: Measured, mode: str, phase: str) -> float:
    return float(np.median([p.get(phase, 0.0) for p in measured.phases[mode]]))


def s1(page: Page, preset: dict) -> None:
    page.add(
        "## S1: an epoch that only communicates\n\nOne exchange forward and one backward, P=2, rows of "
        f"{preset['width']} float32 values, no computing in between. Measured; links of a lab. `compute` is the "
        f"share of the fp32 epoch in neither codec nor wire (at most {S1_COMPUTE:g} is wanted), `rho` the share "
        "spent waiting for the wire. Modes take turns epoch by epoch; a speedup is the median over these "
        "turns of fp32 time / mode's time next to it."
    )
    titles = ("link", "mode", "epoch ms", "speedup over fp32", "payload MB", "interface MB", "rho", "compute")
    modes = ("fp32", "uniform-8", "uniform-4", "uniform-2")
    with page.table(*titles, "threshold") as row:
        for rate in preset["rates"]:
            found = measure(
                Case(width=preset["width"], modes=dict.fromkeys(modes), rounds=preset["rounds"]), preset, rate
            )
            for mode in modes:
                ratio = paired(found.seconds["fp32"], found.seconds[mode])
                compute = float(np.median(share(found, mode, "central", "marginal", "other")))
                claim = S1_CLAIMS.get(rate, {}).get(mode)
                told = "" if claim is None else verdict(float(np.median(ratio)), least=claim)
                if mode == "fp32":
                    told = f"compute {verdict(compute, most=S1_COMPUTE)}"
                row(
                    rate,
                    mode,
                    spread(found.seconds[mode], 1e3),
                    spread(ratio, digits=2),
                    f"{found.payload_bytes[mode] / 1e6:.2f}",
                    f"{found.kernel_bytes[mode] / preset['rounds'] / 1e6:.2f}",
                    spread(share(found, mode, "wire"), digits=2),
                    f"{compute:.3f}",
                    told,
                )


def s2(page: Page, preset: dict) -> None:
    page.add(
        "## S2: a balanced workload against the model\n\nP=2, 200mbit; computing is slept (emulated: an "
        "accelerator that leaves the processor alone) between sending and receiving, its length set so that "
        f"the fp32 epoch spends {S2_SHARE} of its time on the wire. `predicted` is `epoch_model.EpochModel` "
        "fed with the links and codec rates that the planner measures before the first epoch, and with the "
        "slept time; nothing in it comes from the timed epochs. Both speedups are against fp32 without overlap."
    )
    serial = "uniform-4" + SERIAL
    work = Work("fp32", (1 - S2_SHARE) / S2_SHARE)
    modes = dict.fromkeys(("fp32", serial, "uniform-4"), work)
    found = measure(Case(width=preset["width"], modes=modes, rounds=preset["rounds"]), preset, "200mbit")
    wire_bytes = found.payload_bytes["fp32"] / 2
    model = EpochModel(
        compute_s=found.work_s["fp32"],
        central_s=found.work_s["fp32"],
        wire_bytes=wire_bytes,
        bandwidth_bytes_per_s=1 / found.s_per_byte,
        pack_bytes_per_s=wire_bytes / (2 * found.pack_s[4]),
        unpack_bytes_per_s=wire_bytes / (2 * found.unpack_s[4]),
    )
    with page.table(
        "mode", "epoch ms", "measured", "predicted", "share of predicted", "MB", "threshold"
    ) as row:
        rho = float(np.median(share(found, "fp32", "wire")))
        within = verdict(rho, least=S2_SHARE - S2_SHARE_WITHIN, most=S2_SHARE + S2_SHARE_WITHIN)
        shown = f"{found.payload_bytes['fp32'] / 1e6:.2f}"
        row("fp32", spread(found.seconds["fp32"], 1e3), "1", "1", "", shown, f"rho {rho:.2f}, {within}")
        for mode in (serial, "uniform-4"):
            ratio = paired(found.seconds["fp32"], found.seconds[mode])
            sent = found.payload_bytes[mode]
            said = model.speedup(found.payload_bytes["fp32"] / sent, overlap=mode != serial)
            got = float(np.median(ratio)) / said
            row(
                "4 bits, no overlap" if mode == serial else "4 bits, overlap",
                spread(found.seconds[mode], 1e3),
                spread(ratio, digits=2),
                f"{said:.2f}",
                f"{got:.2f}",
                f"{sent / 1e6:.2f}",
                verdict(got, least=S2_CLAIM),
            )


def s3(page: Page, preset: dict) -> None:
    page.add(
        "## S3: how much of the wire the computing hides\n\nP=2, 200mbit; computing is real (matrix products "
        "on each rank's one thread), their number set so that they take as long as the wire. "
        "eta = (T_serial - T_overlap) / min(wire, computing), wire and computing those of the serial mode, "
        "turn by turn. Measured."
    )
    pairs = (("fp32", "adaqp-p"), ("uniform-4" + SERIAL, "uniform-4"))
    modes = {mode: Work(serial, 1.0) for serial, overlapped in pairs for mode in (serial, overlapped)}
    case = Case(width=preset["width"], modes=modes, kind="matmul", rounds=preset["rounds"])
    found = measure(case, preset, "200mbit")
    with page.table(
        "bits", "serial ms", "overlapped ms", "wire ms", "computing ms", "eta", "MB", "threshold"
    ) as row:
        for (serial, overlapped), bits in zip(pairs, (32, 4), strict=True):
            wire, central = phase_s(found, serial, "wire"), phase_s(found, serial, "central")
            saved = np.array(found.seconds[serial]) - np.array(found.seconds[overlapped])
            eta = saved / min(wire, central)
            row(
                bits,
                spread(found.seconds[serial], 1e3),
                spread(found.seconds[overlapped], 1e3),
                f"{wire * 1e3:.1f}",
                f"{central * 1e3:.1f}",
                spread(eta, digits=2),
                f"{found.payload_bytes[overlapped] / 1e6:.2f}",
                verdict(float(np.median(eta)), least=S3_CLAIM),
            )


def a5(page: Page, preset: dict) -> None:
    page.add(
        "## A5: the cost of a link, fitted\n\nP=2, 200mbit, both directions loaded; `fit_link` on the seconds "
        "until the slower rank had its message. The slope times the nominal rate should be that of a link "
        f"that carries {A5_PAYLOAD} of its rate as payload, within {A5_WITHIN:.0%}. Measured. The last row is "
        "what the planner measures by itself with its short probes."
    )
    case = Case(modes={}, probe_bytes=tuple(preset["probes"]), probe_rounds=preset["probe_rounds"])
    found = measure(case, preset, "200mbit")
    rate = units.parse_rate("200mbit")
    fit = fit_link([(float(size), seconds) for size, seconds in found.probes])
    bounds = {"least": (1 - A5_WITHIN) / A5_PAYLOAD, "most": (1 + A5_WITHIN) / A5_PAYLOAD}
    with page.table("fit", "messages", "left out", "R^2", "slope x rate", "threshold") as row:
        slope = fit.s_per_byte * rate
        told = f"R^2 {verdict(fit.r_squared, least=A5_R_SQUARED)}; slope {verdict(round(slope, 3), **bounds)}"
        row("probes", fit.samples, fit.outliers, f"{fit.r_squared or 0:.4f}", f"{slope:.3f}", told)
        own = found.s_per_byte * rate
        row("planner's", "", "", "", f"{own:.3f}", f"slope {verdict(own, **bounds)}")
