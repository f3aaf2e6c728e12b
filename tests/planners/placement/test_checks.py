"""Plans that no longer fit: every fault has its name."""

import msgspec
import pytest
from benchmarks.random_tasks import random_tasks

from tests.sim.flows.helpers import mixed_links
from wirewise.errors import PlanError
from wirewise.planners.placement import PLANNERS, PlacementProblem, faults, host_faults

HOSTS = tuple(f"host{h}" for h in range(4))


@pytest.fixture(scope="module")
def problem():
    return PlacementProblem(random_tasks(seed=1), HOSTS, mixed_links(1))


@pytest.fixture(scope="module")
def found(problem):
    return PLANNERS["colocated"](problem)


def replaced(problem, **changes):
    tasks = msgspec.structs.replace(problem.tasks, **changes)
    return PlacementProblem(tasks, problem.hosts, problem.links)


def moved(found, name, host):
    tasks = (msgspec.structs.replace(task, host=host) if task.name == name else task for task in found.tasks)
    return msgspec.structs.replace(found, tasks=tuple(tasks))


def test_a_plan_fits_what_it_was_made_from(problem, found):
    assert list(faults(found, problem)) == []


def test_other_tasks_are_named(problem, found):
    fewer = PlacementProblem(random_tasks(seed=1, workers=5), HOSTS, problem.links)
    (fault,) = faults(found, fewer)
    assert "made for other tasks; unknown to the job: sampler5.0, sampler5.1, worker5" in fault
    (fault,) = faults(PLANNERS["colocated"](fewer), problem)
    assert "not placed: sampler5.0, sampler5.1, worker5" in fault
    with pytest.raises(PlanError, match=r"of another kind: worker0; make"):
        found.check_tasks(problem.tasks.kinds | {"worker0": "store"})
    with pytest.raises(PlanError, match=r"sampler0\.0, sampler0\.1, sampler1\.0, sampler1\.1 and 19 more"):
        found.check_tasks({})


def test_other_hosts_are_named(found):
    (fault,) = host_faults(found, HOSTS[:3])
    assert "is for 4 hosts, there are 3" in fault
    (fault,) = host_faults(found, ("host0", "host1", "gpu2", "host3"))
    assert "host 2 is 'host2' - at `$.hosts[2]`, the topology's is 'gpu2'" in fault


def test_tasks_where_they_cannot_be_are_named(problem, found):
    fixed, *_ = faults(moved(found, "store2", 0), problem)
    assert "store2 is on host 'host0', the job fixes it on 'host2'" in fixed
    crowded = found
    for number in range(6):
        crowded = moved(crowded, f"worker{number}", 1)
    room, *_ = faults(crowded, problem)
    assert "host 'host1' has 2 of 'gpu', the tasks that the plan places there demand 6" in room


def test_another_simulated_time_is_named(problem, found):
    changed = msgspec.structs.replace(found, predicted_s=2 * found.predicted_s)
    (fault,) = faults(changed, problem)
    assert "at `$.predicted_s`" in fault and f"gives {found.predicted_s:.6g}" in fault
    (fault,) = faults(found, PlacementProblem(problem.tasks, HOSTS, mixed_links(2)))
    assert "at `$.predicted_s`" in fault
    (fault,) = faults(found, replaced(problem, prefetch=3))
    assert fault.startswith("prefetch is 2 - at `$.prefetch`, the job's is 3")
