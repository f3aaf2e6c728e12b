"""Every file of weights that comes along has a record of where it comes from."""

import hashlib
import re
import tomllib
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src"
# Graphs and traces in these folders are data, not weights.
DATA = ("wirewise/graph/data", "wirewise/trace/data")
WEIGHTS = sorted(
    path
    for ending in ("npz", "npy", "pt", "pth", "safetensors", "onnx", "bin")
    for path in SOURCE.rglob(f"*.{ending}")
    if str(path.parent.relative_to(SOURCE)) not in DATA
)
FIELDS = {"sha256", "commit", "command", "seed", "hardware", "seconds", "losses", "reproduced"}
PLACEHOLDERS = re.compile(r"(?i)\s*(|-|tbd|todo|unknown|n/?a|none)\s*")


def faults(weights: Path) -> list[str]:
    """What is wrong with the record beside a file of weights."""
    path = weights.with_suffix(".toml")
    if not path.exists():
        return ["no record"]
    record = tomllib.loads(path.read_text(encoding="utf-8"))
    wrong = [f"{name} is missing" for name in FIELDS - record.keys()]
    wrong += [f"{name} is no field" for name in record.keys() - FIELDS]
    # What is not known is said.
    wrong += [f"{name} says nothing" for name, text in record.items() if PLACEHOLDERS.fullmatch(str(text))]
    if record.get("sha256") != hashlib.sha256(weights.read_bytes()).hexdigest():
        wrong.append("sha256 is of another file")
    return wrong


def test_weights_are_found():
    assert {path.stem for path in WEIGHTS} >= {"tag", "tapfinger", "regions-cpu-avx2", "regions-cpu-avx512"}


@pytest.mark.parametrize("weights", WEIGHTS, ids=lambda path: path.stem)
def test_weights_have_a_record(weights):
    assert faults(weights) == []


def test_a_command_of_a_record_exists():
    for weights in WEIGHTS:
        command = tomllib.loads(weights.with_suffix(".toml").read_text(encoding="utf-8"))["command"]
        if module := re.match(r"python -m ([\w.]+)", command):
            assert (SOURCE / Path(*module[1].split("."))).with_suffix(".py").exists()
        else:
            assert command == "not recorded"


def test_what_does_not_fit_is_named(tmp_path):
    weights = tmp_path / "net.npz"
    weights.write_bytes(b"0")
    assert faults(weights) == ["no record"]
    told = "\n".join(f'{name} = "not recorded"' for name in sorted(FIELDS - {"sha256", "seed"}))
    digest = hashlib.sha256(b"0").hexdigest()
    weights.with_suffix(".toml").write_text(f'sha256 = "{digest}"\nseed = "?"\n{told}'.replace("?", "0"))
    assert faults(weights) == []
    weights.write_bytes(b"1")
    assert faults(weights) == ["sha256 is of another file"]
    weights.with_suffix(".toml").write_text(f'sha256 = "{digest}"\n{told}\nloss = ""')
    assert sorted(faults(weights)) == [
        "loss is no field",
        "loss says nothing",
        "seed is missing",
        "sha256 is of another file",
    ]
