"""Programs carried out by torch's messages."""

import pytest
import torch
import torch.distributed as dist

from tests.harness.processes import run_ranks_as_processes
from wirewise.collective import COLLECTIVES, ROOTED
from wirewise.collective.builders import algorithms, build
from wirewise.errors import ProgramError
from wirewise.runtime import collective

pytestmark = pytest.mark.dist


def over_torch(rank):
    """Every known algorithm, by torch's messages, against what its collective means."""
    n, checked = dist.get_world_size(), 0
    for name in COLLECTIVES:
        for algorithm in algorithms(name):
            try:
                program = build(name, algorithm, n, segments=2, root=1 if name in ROOTED else 0)
            except ProgramError:
                continue
            # Block b of rank r starts as 100 r + b; sums and copies can be told apart.
            count = 30_000
            tensors = {b: torch.full((count,), 100.0 * rank + b) for b in range(program.blocks)}
            blocks = collective.Blocks(torch.float32, dict.fromkeys(tensors, count), tensors)
            collective.run_over_torch(program, blocks)
            for chunk in range(program.chunks):
                b = program.block_of(chunk)
                if rank in program.ends_at(chunk):
                    expected = sum(100.0 * r + b for r in program.starts_at(chunk))
                    assert torch.equal(tensors[b], torch.full((count,), expected)), (name, algorithm, b)
                    checked += 1
    with pytest.raises(ProgramError, match="is for 2 ranks"):
        collective.run_over_torch(build("broadcast", "flat", 2), blocks)
    return checked


@pytest.mark.slow
def test_programs_run_over_messages_of_torch():
    assert all(checked > 50 for checked in run_ranks_as_processes(4, over_torch))
