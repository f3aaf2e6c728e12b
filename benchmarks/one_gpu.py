"""Everything that one GPU shows, within four minutes: `make gpu PYTHON=python3 OUT=FOLDER`.

Kernels against the memory's limit, bytes of the CPU, training, and NCCL with one rank; pages and logs go to the folder.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]


class Check(NamedTuple):
    """One program, and the seconds after which it is ended."""

    name: str
    limit_s: float
    command: list[str]


def checks(out: Path) -> list[Check]:
    """Programs in the order in which they matter, with limits that add up to four minutes."""
    tests = [
        "tests/codec",
        "tests/graph/ops",
        "tests/runtime/data_parallel/test_nccl.py",
        "tests/runtime/full_graph/test_gpu.py",
        "tests/runtime/mini_batch/test_device.py",
    ]
    pytest = ["-m", "pytest", "-q", "-m", "gpu", "--timeout", "60", "-p", "no:cacheprovider", *tests]
    pages = {
        name: [
            str(ROOT / "benchmarks" / name / "run.py"),
            "--device",
            "cuda",
            "--out",
            str(out / f"{name}_gpu.md"),
        ]
        for name in ("quantize_kernels", "gradient_codecs")
    }
    return [
        Check("tests", 110, pytest),
        *(Check(name, 45, command) for name, command in pages.items()),
        Check("salientpp", 40, ["-m", "wirewise", "run", "salientpp", "--device", "cuda", "--workers", "1",
                                "--epochs", "2", "--out", str(out / "salientpp")]),
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("gpu-out"), help="Folder of pages and logs.")
    out = parser.parse_args().out.resolve()
    import torch

    if not torch.cuda.is_available():
        raise SystemExit(
            f"PyTorch {torch.__version__} finds no CUDA device; run this where `wirewise doctor` lists one"
        )
    out.mkdir(parents=True, exist_ok=True)
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, CUDA {torch.version.cuda}", flush=True)
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")]),
    }
    failed = []
    for check in checks(out):
        start_s = time.monotonic()
        with (out / f"{check.name}.log").open("w") as log:
            try:
                code: int | str = subprocess.run(
                    [sys.executable, *check.command],
                    cwd=ROOT,
                    env=environment,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    timeout=check.limit_s,
                    check=False,
                ).returncode
            except subprocess.TimeoutExpired:
                code = f"not done after {check.limit_s:g} s"
        last = (out / f"{check.name}.log").read_text(errors="replace").strip().splitlines()[-1:]
        print(f"{check.name}: {code}, {time.monotonic() - start_s:.0f} s; {' '.join(last)}", flush=True)
        failed += [check.name] if code else []
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}; their logs are in {out}")


if __name__ == "__main__":
    main()
