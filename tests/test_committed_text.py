"""Nothing that is committed depends on where it was written."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# Written in pieces, so that this file passes its own test.
HOMES = "|".join(["/" + "work/", "/" + r"home/\w+/", "/" + "root/", "/" + r"Users/\w+/"])
PRIVATE = re.compile(rf"(?<![\w.])({HOMES})")


def committed_files() -> list[Path]:
    try:
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("not a git checkout")
    return [ROOT / name for name in listed.stdout.decode().split("\0") if name]


def texts() -> dict[Path, str]:
    found = {}
    for path in committed_files():
        if path.is_file():
            content = path.read_bytes()
            if b"\0" not in content:
                found[path] = content.decode("utf-8")
    return found


def test_no_text_holds_a_private_path():
    found = [f"{p.relative_to(ROOT)}: {m[0]}" for p, text in texts().items() for m in PRIVATE.finditer(text)]
    assert found == []


def test_the_pattern_finds_private_paths():
    assert PRIVATE.search("see /" + "root/notes") and PRIVATE.search("cd /" + "work/main")
    assert not PRIVATE.search("framework/main and ../work/x")


def test_text_files_end_with_one_line_feed():
    bad = [
        str(p.relative_to(ROOT))
        for p, t in texts().items()
        if t and (not t.endswith("\n") or t.endswith("\n\n"))
    ]
    assert bad == []
