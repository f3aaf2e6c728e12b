"""Freed blocks below a size stay with the process, larger ones go back to the kernel."""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness.tiers import slow

CODE = """
import sys
import torch
from wirewise.runtime import full_graph as fg
fg.keep_freed_memory(int(sys.argv[1]))
x = torch.ones(int(sys.argv[2]) // 4)
# Above x in the heap, so that x is not its top.
barrier = [torch.ones(4) for _ in range(100)]
full = fg.resident_bytes()
del x
# The kernel counts pages of a thread in batches.
print(full - fg.resident_bytes(), fg.peak_resident_bytes() > full - (1 << 20))
"""
HUGE = Path("/sys/kernel/mm/transparent_hugepage/enabled")


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc")
@pytest.mark.skipif(not HUGE.exists() or "[never]" in HUGE.read_text(), reason="needs huge pages")
@pytest.mark.parametrize(
    ("below", "size", "returned"),
    [(16 << 20, 64 << 20, True), slow((16 << 20, 8 << 20, False)), slow((1 << 30, 64 << 20, False))],
)
@pytest.mark.sample(2)
def test_only_large_blocks_go_back(below, size, returned):
    command = [sys.executable, "-c", CODE, str(below), str(size)]
    freed, peak_is_most = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert (int(freed) > 0.9 * size) == returned
    assert peak_is_most == "True"
