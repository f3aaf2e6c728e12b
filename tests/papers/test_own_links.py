"""Rates that plans are made for: a lab's as it is shaped, those of an allocation as measured."""

from __future__ import annotations

import msgspec
import pytest

from wirewise.errors import InputError
from wirewise.hosts import slurm
from wirewise.hosts.allocation import Allocation
from wirewise.lab import Loopback
from wirewise.trials import start
from wirewise_papers import own_links
from wirewise_papers.cross_mesh.job import CrossMeshOptions
from wirewise_papers.gnn_tasks.job import GnnTasksOptions
from wirewise_papers.own_links import resolve_links
from wirewise_papers.pipedream_2bw.job import PipelineJob
from wirewise_papers.rhino.job import RhinoOptions
from wirewise_papers.sea_er import experiment as sea_er
from wirewise_papers.sea_er.job import IncrementalJob
from wirewise_papers.tag import planning as tag
from wirewise_papers.tag.job import TagOptions
from wirewise_papers.tapfinger import experiment as tapfinger
from wirewise_papers.tapfinger.job import TapFingerJob


@pytest.fixture
def allocation(monkeypatch):
    """Two hosts of Slurm whose links were measured."""
    found = Allocation("7", ("h0", "h1"), 2)
    for module in (slurm, start, tapfinger):
        monkeypatch.setattr(module, "current_allocation", lambda: found)
    monkeypatch.setattr(slurm.SlurmHosts, "_check", lambda self: 1234)
    monkeypatch.setattr(own_links, "link_rates", lambda hosts: ("900mbit", "80mbit")[: hosts.num_hosts])


@pytest.mark.parametrize(
    ("job", "links"),
    [
        (PipelineJob(hosts=2), ("80mbit", None)),
        (RhinoOptions(hosts=2), ("80mbit", {0: "900mbit", 1: "80mbit"})),
        (GnnTasksOptions(hosts=2), ("80mbit", {0: "900mbit", 1: "80mbit"})),
        (CrossMeshOptions(), ("80mbit", {0: "900mbit", 1: "80mbit"})),
        (TagOptions(speeds=(1, 0.5)), (None, ("900mbit", "80mbit"))),
    ],
)
def test_links_of_an_allocation_are_measured(allocation, job, links):
    said = []
    found = resolve_links(job, 2, said.append)
    assert found.network == "slurm"
    assert (getattr(found, "link", None), getattr(found, "links", None)) == links
    assert said[1:] == ["links as measured: h0 900mbit, h1 80mbit"]
    shaped = msgspec.structs.replace(job, network="lab")
    assert resolve_links(shaped, 2, said.append) == shaped


def test_elsewhere_links_are_as_the_job_says():
    job = RhinoOptions(links={1: "5mbit"})
    assert resolve_links(job, 4, print) == msgspec.structs.replace(job, network="lab")


def test_more_hosts_than_there_are_are_refused(allocation):
    with pytest.raises(InputError, match=r"got 4 hosts, and allocation 7 has 2"):
        resolve_links(RhinoOptions(), 4, print)


def test_hosts_of_an_allocation_are_not_throttled(allocation):
    wish = TagOptions(speeds=(1, 0.5), computing="real")
    with pytest.raises(InputError, match="expected --computing slept, or --network lab"):
        tag.make_job(wish)


def test_ranks_of_a_growing_graph_are_spread_over_an_allocation(allocation, monkeypatch, tmp_path):
    started = []

    def run_ranks(module, folder, outcome, *, network, ranks, job, log):
        started.append((type(network), ranks, job.network, job.hosts))

    monkeypatch.setattr(sea_er, "run_ranks", run_ranks)
    sea_er.run(IncrementalJob(workers=4), tmp_path, print)
    with pytest.raises(InputError, match="3 workers cannot be spread evenly over 2 hosts"):
        sea_er.run(IncrementalJob(workers=3), tmp_path, print)
    sea_er.run(IncrementalJob(workers=3, network="loopback"), tmp_path, print)
    assert started == [(slurm.SlurmHosts, 4, "slurm", 2), (Loopback, 3, "loopback", 1)]


def test_jobs_of_a_queue_wait_for_no_host_of_their_own_allocation(allocation, monkeypatch):
    monkeypatch.setattr(tapfinger, "hosts_of_slurm", lambda: ["h0", "h1", "h2"])
    with pytest.raises(InputError, match="allocation 7 holds h0, h1; say --network slurm"):
        tapfinger._settled(TapFingerJob(real_jobs=2))
    assert tapfinger._settled(TapFingerJob(network="slurm", clusters=1))[:2] == ("slurm", ["h2"])
    with pytest.raises(
        InputError, match="Slurm can run jobs on 1 hosts, outside of this allocation, and fault is ''"
    ):
        tapfinger._settled(TapFingerJob(network="slurm", clusters=2))
