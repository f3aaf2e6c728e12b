"""Members of generations, decided from events alone."""

from __future__ import annotations

from wirewise.runtime.recovery.generations import (
    AbortJob,
    BeginGeneration,
    Coordinator,
    End,
    ErrorRaised,
    GenerationEnded,
    HostLost,
    PhaseReached,
    RefuseProcess,
    StartTimedOut,
    TrainingFinished,
    WorkerLost,
    WorkerReady,
    WorkerStarted,
)

SAME = {"code": "a", "threads": "1"}


def started(ranks: int = 3, hosts: int = 1, spares: int = 0, **options: bool) -> Coordinator:
    """A coordinator whose first generation has begun, with spares on each host."""
    coordinator = Coordinator(ranks, hosts, **options)
    for host in range(hosts):
        for number in range(ranks // hosts + spares):
            coordinator.on_event(WorkerReady((host, number), SAME))
    assert coordinator.generation is not None
    return coordinator


def lost(*worker: int) -> WorkerLost:
    return WorkerLost((worker[0], worker[1]), "killed by SIGKILL", 5.0)


def test_the_first_generation_begins_when_each_host_has_its_ranks():
    coordinator = Coordinator(4, 2)
    for worker in ((1, 0), (1, 1), (0, 1)):
        assert coordinator.on_event(WorkerReady(worker, SAME)) == []
    (begun,) = coordinator.on_event(WorkerReady((0, 0), SAME))
    assert isinstance(begun, BeginGeneration)
    assert begun.generation.workers == {0: (0, 0), 1: (0, 1), 2: (1, 0), 3: (1, 1)}
    assert begun.generation.number == 1 and begun.generation.fresh == (0, 1, 2, 3)


def test_a_spare_of_the_same_host_takes_the_role_of_a_lost_rank():
    coordinator = started(4, 2, spares=1)
    over, begun = coordinator.on_event(lost(1, 0))
    assert over == GenerationEnded(1) and isinstance(begun, BeginGeneration)
    assert begun.generation.workers[2] == (1, 2)
    assert begun.generation.fresh == begun.generation.dead == (2,) and begun.generation.since_s == 5.0


def test_ranks_are_interrupted_at_once_and_wait_for_a_process_to_be_ready():
    coordinator = started()
    assert coordinator.on_event(lost(0, 0)) == [GenerationEnded(1)] and coordinator.waits
    (begun,) = coordinator.on_event(WorkerReady((0, 3), SAME))
    assert isinstance(begun, BeginGeneration) and begun.generation.workers[0] == (0, 3)
    assert not coordinator.waits


def test_a_fault_during_a_recovery_begins_the_generation_after_it():
    coordinator = started(spares=2)
    coordinator.on_event(lost(0, 0))
    over, begun = coordinator.on_event(lost(0, 1))
    assert over == GenerationEnded(2) and isinstance(begun, BeginGeneration)
    assert begun.generation.number == 3 and begun.generation.fresh == (1,)


def test_the_death_of_a_spare_interrupts_nobody():
    assert started(spares=1).on_event(lost(0, 3)) == []


def test_an_elastic_job_goes_on_with_fewer_ranks_and_grows_again():
    coordinator = started(elastic=True)
    over, begun = coordinator.on_event(lost(0, 1))
    assert over == GenerationEnded(1) and isinstance(begun, BeginGeneration)
    assert begun.generation.ranks == (0, 2) and begun.generation.world_size == 3
    over, grown = coordinator.on_event(WorkerReady((0, 3), SAME))
    assert over == GenerationEnded(2) and isinstance(grown, BeginGeneration)
    assert (
        grown.generation.ranks == (0, 1, 2) and grown.generation.fresh == (1,) and grown.generation.dead == ()
    )


def test_a_host_that_is_lost_takes_its_ranks_and_spares_with_it():
    coordinator = started(4, 2, spares=2)
    over, begun = coordinator.on_event(HostLost(1, 5.0))
    assert over == GenerationEnded(1) and isinstance(begun, BeginGeneration)
    assert begun.generation.dead == (2, 3) and begun.generation.workers[3][0] == 0


def test_another_code_or_number_of_threads_is_refused_by_name():
    coordinator = started()
    (refused,) = coordinator.on_event(WorkerReady((0, 9), {"code": "b", "threads": "2"}))
    assert isinstance(refused, RefuseProcess) and refused.worker == (0, 9)
    assert "code 'b' instead of 'a', threads '2' instead of '1'" in refused.reason
    # The job goes on without it.
    assert coordinator.on_event(ErrorRaised((0, 9), "refused")) == [] and coordinator.spares == 0


def test_training_ends_when_all_ranks_of_the_generation_have_finished():
    coordinator = started(2)
    assert coordinator.on_event(TrainingFinished((0, 0), 1)) == []
    assert coordinator.on_event(lost(0, 1)) == [GenerationEnded(1)]
    coordinator.on_event(WorkerReady((0, 2), SAME))
    assert coordinator.on_event(TrainingFinished((0, 0), 1)) == []
    assert coordinator.on_event(TrainingFinished((0, 0), 2)) == []
    assert coordinator.on_event(TrainingFinished((0, 2), 2)) == [End()]


def test_an_error_of_a_rank_ends_the_job_as_it_would_come_again():
    (given_up,) = started().on_event(ErrorRaised((0, 1), "ValueError: x"))
    assert isinstance(given_up, AbortJob) and "rank 1 raised an error:\nValueError: x" in given_up.reason


def test_generations_without_a_new_step_end_the_job():
    coordinator = started(2)
    commands = []
    for number in range(2, 30):
        commands += coordinator.on_event(lost(0, number - 1))
        commands += coordinator.on_event(WorkerReady((0, number), SAME))
        if number < 8:
            coordinator.on_event(PhaseReached((0, 0), 0, number, "committed", 0.0, number))
    assert isinstance(commands[-1], AbortJob)
    assert "10 generations in a row committed no step after 7" in commands[-1].reason


def test_processes_that_are_starting_are_not_missing():
    coordinator = Coordinator(4, 2)
    assert coordinator.has_too_few_processes
    for worker in ((0, 0), (0, 1), (1, 0), (1, 1)):
        coordinator.on_event(WorkerStarted(worker))
    assert not coordinator.has_too_few_processes and coordinator.waits
    coordinator.on_event(lost(1, 0))
    assert coordinator.has_too_few_processes
    coordinator.on_event(WorkerStarted((1, 2)))
    for worker in ((0, 0), (0, 1), (1, 1)):
        coordinator.on_event(WorkerReady(worker, SAME))
    assert not coordinator.has_too_few_processes and coordinator.generation is None
    coordinator.on_event(HostLost(1, 5.0))
    assert coordinator.has_too_few_processes


def test_a_rank_without_a_spare_waits_for_a_process_that_is_starting():
    coordinator = started(2)
    coordinator.on_event(lost(0, 1))
    assert coordinator.has_too_few_processes
    coordinator.on_event(WorkerStarted((0, 2)))
    assert not coordinator.has_too_few_processes and coordinator.waits


def test_a_process_that_never_asks_for_a_role_ends_the_job_only_where_it_is_waited_for():
    coordinator = started(2)
    coordinator.on_event(WorkerStarted((0, 2)))
    assert coordinator.on_event(StartTimedOut((0, 2), 60.0)) == []
    coordinator.on_event(lost(0, 1))
    coordinator.on_event(WorkerStarted((0, 3)))
    (given_up,) = coordinator.on_event(StartTimedOut((0, 3), 60.0))
    assert isinstance(given_up, AbortJob)
    assert "process 3 of host 0 has not called `protect` within 60 s, though it lives" in given_up.reason
    assert "--start-timeout" in given_up.reason


def test_ranks_of_a_host_have_numbers_of_their_own_and_keep_them_with_their_process():
    coordinator = started(4, 2, spares=2)
    assert coordinator.generation is not None
    assert coordinator.generation.local_ranks == {0: 0, 1: 1, 2: 0, 3: 1}
    _, begun = coordinator.on_event(lost(0, 0))
    assert isinstance(begun, BeginGeneration) and begun.generation.local_ranks == {0: 0, 1: 1, 2: 0, 3: 1}
    # Spares of the other host take what it has free.
    coordinator.on_event(HostLost(1, 5.0))
    (begun,) = coordinator.on_event(WorkerReady((0, 4), SAME))
    assert isinstance(begun, BeginGeneration) and begun.generation.local_ranks == {0: 0, 1: 1, 2: 2, 3: 3}
