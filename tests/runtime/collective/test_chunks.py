"""B4: chunk sizes that are tried on the ranks of a group, alike on all of them."""

import json

import pytest
import torch

from tests.runtime.collective.ranks import on_ranks
from wirewise.collective.builders import build
from wirewise.errors import InputError, ProgramError
from wirewise.lab import Lab
from wirewise.runtime.collective import chunks, tune_chunk_size
from wirewise.runtime.collective.chunks import segments_of


@pytest.mark.parametrize(("collective", "name"), [("broadcast", "chain"), ("all_reduce", "ring")])
def test_b4_all_ranks_find_the_same_chunk_size(collective, name):
    def run(group):
        program = build(collective, name, group.size)
        tuned = tune_chunk_size(group, program, 1 << 20, calls=1)
        ones = torch.ones(5000)
        getattr(group, collective)(ones, program=tuned.program)
        return tuned, ones.sum().item()

    (first, total), *others = on_ranks(3, run)
    assert all(other == (first, total) for other in others)
    assert total == (15_000 if collective == "all_reduce" else 5000)
    assert 1 < len(first.probes) <= 12
    best = min(first.probes, key=lambda probe: probe.seconds)
    assert first.program.segments == best.segments
    assert len({probe.segments for probe in first.probes}) == len(first.probes)


@pytest.mark.parametrize("best_bytes", [16_384, 100_000, 1 << 20, 3 << 20, 8 << 20])
def test_b4_the_best_size_is_found_where_times_are_known(monkeypatch, best_bytes):
    program, size_bytes = build("broadcast", "chain", 2), 8 << 20

    def seconds(segments):
        # A pipeline: filling it costs the size of a chunk, and each chunk its handling.
        chunk_bytes = size_bytes / segments
        return 1 + chunk_bytes / best_bytes + best_bytes / chunk_bytes

    monkeypatch.setattr(chunks, "call_of", lambda *arguments: (arguments[-1]["segments"], None))
    monkeypatch.setattr(chunks, "_least_s", lambda group, segments, calls: seconds(segments))
    tuned = tune_chunk_size(None, program, size_bytes)
    assert len(tuned.probes) <= 12
    assert seconds(tuned.program.segments) <= min(map(seconds, range(1, 513))) / 0.95


def test_segments_are_those_of_the_longest_chunk():
    ring = build("all_reduce", "ring", 4)
    assert segments_of(ring, 4 << 20, 1 << 18) == 4
    assert segments_of(ring, 4 << 20, 1 << 30) == 1


def test_no_probes_and_programs_for_others_are_refused():
    def run(group):
        with pytest.raises(InputError, match="got 0 probes of 3 calls"):
            tune_chunk_size(group, build("broadcast", "chain", 2), 100_000, probes=0)
        with pytest.raises(ProgramError, match="is for 3 ranks and the group has 2"):
            tune_chunk_size(group, build("broadcast", "chain", 3), 100_000)
        return tune_chunk_size(group, build("broadcast", "chain", 2), 100_000, probes=1, calls=1)

    for tuned in on_ranks(2, run):
        assert len(tuned.probes) == 1 and tuned.program.segments == 1


_RANKS = """
import json, torch, torch.distributed as dist
from wirewise.collective.builders import build
from wirewise.runtime.collective import connect, tune_chunk_size
dist.init_process_group("gloo")
with connect() as group:
    tuned = tune_chunk_size(group, build("broadcast", "chain", group.size), 1_000_000, calls=2)
    print(json.dumps(tuned.probes))
    dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.slow
@pytest.mark.lab
def test_b4_a_chain_over_shaped_links_is_cut_into_chunks(tmp_path):
    script = tmp_path / "ranks.py"
    script.write_text(_RANKS)
    with Lab(3, "100mbit") as lab:
        result = lab.run([str(script)], launcher="direct", timeout_s=60)
    assert result.ok, result.tails
    probes, *others = [json.loads(tail[-1]) for tail in result.tails]
    assert all(other == probes for other in others) and len(probes) <= 12
    # Whole, the second link waits for the first: twice the 84 ms of one.
    _, segments, _ = min(probes, key=lambda probe: probe[2])
    assert segments > 1
