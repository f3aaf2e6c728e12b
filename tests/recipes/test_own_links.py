"""Rates that plans are made for: a lab's as it is shaped, those of an allocation as measured."""

from __future__ import annotations

import msgspec
import pytest

from wirewise.allocation import Allocation
from wirewise.errors import InputError
from wirewise.lab import Loopback
from wirewise.recipes import own_links, sea_er, tag, tapfinger
from wirewise.recipes.cross_mesh_job import ReshardWish
from wirewise.recipes.gnn_tasks_job import Wish
from wirewise.recipes.own_links import settled
from wirewise.recipes.pipedream_2bw_job import PipelineJob
from wirewise.recipes.rhino_job import RhinoWish
from wirewise.recipes.sea_er_job import IncrementalJob
from wirewise.recipes.tag_job import DeploymentWish
from wirewise.recipes.tapfinger_job import TapFingerJob
from wirewise.trials import slurm, start


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
        (RhinoWish(hosts=2), ("80mbit", {0: "900mbit", 1: "80mbit"})),
        (Wish(hosts=2), ("80mbit", {0: "900mbit", 1: "80mbit"})),
        (ReshardWish(), ("80mbit", {0: "900mbit", 1: "80mbit"})),
        (DeploymentWish(speeds=(1, 0.5)), (None, ("900mbit", "80mbit"))),
    ],
)
def test_links_of_an_allocation_are_measured(allocation, job, links):
    said = []
    found = settled(job, 2, said.append)
    assert found.network == "slurm"
    assert (getattr(found, "link", None), getattr(found, "links", None)) == links
    assert said[1:] == ["links as measured: h0 900mbit, h1 80mbit"]
    shaped = msgspec.structs.replace(job, network="lab")
    assert settled(shaped, 2, said.append) == shaped


def test_elsewhere_links_are_as_the_job_says():
    job = RhinoWish(links={1: "5mbit"})
    assert settled(job, 4, print) == msgspec.structs.replace(job, network="lab")


def test_more_hosts_than_there_are_are_refused(allocation):
    with pytest.raises(InputError, match=r"got 4 hosts, and allocation 7 has 2"):
        settled(RhinoWish(), 4, print)


def test_hosts_of_an_allocation_are_not_throttled(allocation):
    wish = DeploymentWish(speeds=(1, 0.5), computing="real")
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
