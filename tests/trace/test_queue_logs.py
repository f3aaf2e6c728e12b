"""Logs of clusters are read as queues, and refused by line."""

from __future__ import annotations

import json
import tracemalloc

import pytest

from wirewise.errors import InputError
from wirewise.planners.jobs import plan_jobs, problem_of
from wirewise.trace import EdgeCluster
from wirewise.trace.queue_logs import HELIOS_LIKE, QUEUE_LOGS, read_queue_log, read_speeds

ROOM = (EdgeCluster(name="a", cpus=8, gpus=8),)
HELIOS = """job_id,user,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue
7,u1,2,8,1,COMPLETED,2020-04-01 00:10:00,2020-04-01 00:11:00,2020-04-01 00:21:00,600,0
5,u2,0,4,1,COMPLETED,2020-04-01 00:00:00,2020-04-01 00:00:00,2020-04-01 00:02:00,120,0
6,u2,2,4,1,FAILED,2020-04-01 00:01:30,2020-04-01 00:02:00,2020-04-01 00:22:00,1200,0
8,u3,1,4,1,CANCELLED,2020-04-01 00:02:00,,,0,0
"""
PHILLY = [
    {
        "status": "Pass", "vc": "v", "jobid": "application_1", "submitted_time": "2017-10-07 01:00:00", "user": "u",
        "attempts": [
            {
                "start_time": "2017-10-07 01:01:00", "end_time": "2017-10-07 01:02:00",
                "detail": [{"ip": "m1", "gpus": ["gpu0"]}],
            },
            {
                "start_time": "2017-10-07 01:03:00", "end_time": "2017-10-07 01:05:00",
                "detail": [{"ip": "m1", "gpus": ["gpu0", "gpu1"]}, {"ip": "m2", "gpus": ["gpu3"]}],
            },
            {"start_time": None, "end_time": None, "detail": []},
        ],
    },
    {"jobid": "application_2", "submitted_time": "2017-10-07 01:00:01", "attempts": []},
]  # fmt: skip
PAI_JOBS = "j1,i1,u,Terminated,100.0,900.0\nj2,i2,u,Running,50.0,\nj3,i3,u,Terminated,160.0,300.0\n"
PAI_TASKS = (
    "j1,worker,3,Terminated,110.0,710.0,600.0,29.3,50.0,T4\nj1,ps,1,Terminated,105.0,710.0,400.0,10,,\n"
    "j2,worker,1,Running,60.0,,600.0,29.3,100.0,T4\nj3,tensorflow,1,Terminated,180.0,300.0,200.0,8,,\n"
)


def test_helios(tmp_path):
    path = tmp_path / "cluster_log.csv"
    path.write_text(HELIOS)
    queue = read_queue_log("helios", path, ROOM)
    assert [(job.name, job.kind, job.arrival) for job in queue.queue] == [
        ("5", "cpu4", 0), ("6", "gpu2", 1), ("7", "gpu2", 10),
    ]  # fmt: skip
    # Two jobs of a kind that take 1200 and 600 s have a median of 900 s.
    assert [job.pace for job in queue.queue] == [1.0, 900 / 1200, 900 / 600]
    assert queue.kinds["gpu2"].progress == ((0.0, 0.0, 60 / 900),) and queue.kinds["cpu4"].cpus == 4
    assert [job.name for job in read_queue_log("helios", path, ROOM, jobs=1).queue] == ["5"]
    # A job that is alone takes as long as it did.
    plan = plan_jobs(problem_of(queue), "sjf")
    assert {one.job: one.end - one.start for one in plan.allotments} == {"5": 2, "6": 20, "7": 10}


def test_philly_adds_up_attempts(tmp_path):
    path = tmp_path / "cluster_job_log"
    path.write_text(json.dumps(PHILLY))
    [job] = read_queue_log("philly", path, ROOM, slot_s=30).queue
    assert (job.name, job.kind, job.arrival, job.pace) == ("application_1", "gpu3", 0, 1.0)
    # A minute of one accelerator and two of three are 140 s of three.
    assert read_queue_log("philly", path, ROOM, slot_s=30).kinds["gpu3"].progress[0][3] == 30 / 140


def test_logs_as_they_are_published_are_read(tmp_path):
    """Times that are "None", a name that comes again, a job that is larger than any cluster."""
    log = json.loads(json.dumps(PHILLY))
    log[0]["attempts"][2] |= {"start_time": "2017-10-07 01:06:00", "end_time": "None", "detail": []}
    larger = [{"ip": f"m{n}", "gpus": ["gpu0", "gpu1"]} for n in range(5)]
    attempt = {"start_time": "2017-10-07 02:00:00", "end_time": "2017-10-07 02:01:00", "detail": larger}
    log += [
        log[0],
        log[0] | {"jobid": "application_9", "submitted_time": "None"},
        log[0] | {"jobid": "application_10", "attempts": [attempt]},
    ]
    path = tmp_path / "cluster_job_log"
    path.write_text(json.dumps(log))
    queue = read_queue_log("philly", path, ROOM)
    assert [job.name for job in queue.queue] == ["application_1", "application_1 (2)"]
    assert queue.notes == (
        "1 of the jobs of the log fit no cluster and are left out, such as 'application_10', which asks for 0 cpus and "
        "10 gpus",
        "1 names of jobs are in the log several times; later ones have a number behind them",
    )
    head = "job_name,task_name,inst_num,status,start_time,end_time,plan_cpu,plan_mem,plan_gpu,gpu_type\n"
    (tmp_path / "pai_task_table.csv").write_text(head + PAI_TASKS + "j4,w,,Terminated,1.0,None,,,,\n")
    (tmp_path / "pai_job_table.csv").write_text(
        "job_name,inst_id,user,status,start_time,end_time\n" + PAI_JOBS
    )
    assert [job.name for job in read_queue_log("pai", tmp_path, ROOM).queue] == ["j1", "j3"]


def test_a_log_that_other_tools_wrote_anew_is_read_alike(tmp_path):
    """A mark of the byte order, spaces in names, counts with decimals, words for times that there are not."""
    path = tmp_path / "cluster_log.csv"
    path.write_text(HELIOS)
    expected = read_queue_log("helios", path, ROOM)
    head, *rows = HELIOS.splitlines()
    rows = [f"{row[:5]}{row[5]}.0,{row[7]}.0{row[8:]}" for row in rows]
    # Gone while they waited; the second one's end is not known.
    rows += [",u4,1.0,4.0,1,CANCELLED,NaT,,,600,0", ",u4,1.0,4.0,1,RUNNING,2020-04-01 00:05:00,,,nan,0"]
    path.write_text("\n".join([head.replace(",", ", "), *rows]), encoding="utf-8-sig")
    assert read_queue_log("helios", path, ROOM) == expected


def test_times_count_with_their_zones(tmp_path):
    path = tmp_path / "cluster_log.csv"
    path.write_text(HELIOS)
    expected = read_queue_log("helios", path, ROOM)
    # The job that came first is told by a clock five hours ahead.
    path.write_text(HELIOS.replace("2020-04-01 00:00:00,2", "2020-04-01 05:00:00+05:00,2"))
    assert read_queue_log("helios", path, ROOM) == expected
    log = json.loads(json.dumps(PHILLY))
    philly = tmp_path / "cluster_job_log"
    philly.write_text(json.dumps(log))
    expected = read_queue_log("philly", philly, ROOM)
    # In the night in which clocks go back, and of a job whose end is told by a machine whose clock is late.
    log[0]["attempts"][1] |= {
        "start_time": "2017-10-07 03:03:00+02:00",
        "end_time": "2017-10-07 02:05:00+01:00",
    }
    late = {"start_time": "2017-10-07 01:06:01", "end_time": "2017-10-07 01:06:00"}
    log[0]["attempts"].append(log[0]["attempts"][0] | late)
    philly.write_text(json.dumps(log))
    assert read_queue_log("philly", philly, ROOM) == expected


def test_pai_joins_its_tables(tmp_path):
    (tmp_path / "pai_job_table.csv").write_text(PAI_JOBS)
    (tmp_path / "pai_task_table.csv").write_text(PAI_TASKS)
    queue = read_queue_log("pai", tmp_path, ROOM)
    # Three instances with half an accelerator each; from the first start to the last end.
    assert [(job.name, job.kind, job.arrival) for job in queue.queue] == [
        ("j1", "gpu2", 0),
        ("j3", "cpu2", 1),
    ]
    assert queue.kinds["gpu2"].progress[0][2] == pytest.approx(60 / 605)


def test_speeds_become_kinds(tmp_path):
    path = tmp_path / "times.csv"
    path.write_text("lm,1,1,26,0.1,2.3\nlm,1,1,46\nlm,2,1,11\nlm,1,2,36\nlm,2,2,6\n")
    kind = read_speeds(path)["lm"]
    assert (kind.cpus, kind.gpus) == (1, 1)
    assert kind.progress == ((0.0,) * 3, (0.0, 5 / 50, 5 / 50), (0.0, 5 / 25, 5 / 20))
    path.write_text("lm,1,1,26\nlm,2,2,6\n")
    with pytest.raises(InputError, match="'lm' was not measured with 1 processors and 2 accelerators"):
        read_speeds(path)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("lm,1,1,26\nlm,1,400000,6\n", "was not measured with 1 processors and 2 accelerators"),
        ("lm,1,1,26\nlm,1,1000000000,6\n", "has up to 1 processors and 1000000000 accelerators"),
        ("lm,1000000,1000000,6\n", "expected a table of at most 1,000,000 figures"),
    ],
)
def test_a_torn_amount_takes_no_memory(tmp_path, lines, message):
    path = tmp_path / "times.csv"
    path.write_text(lines)
    tracemalloc.start()
    try:
        with pytest.raises(InputError, match=message):
            read_speeds(path)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (HELIOS.replace("duration", "length"), "has no column 'duration'"),
        (HELIOS.replace("600,0", "long,0"), "line 2: could not convert string to float: 'long'"),
        (
            HELIOS.replace("2020-04-01 00:00:00", "yesterday", 1),
            "line 3: Invalid isoformat string: 'yesterday'",
        ),
        (HELIOS.splitlines()[0], "no job of it ran with a processor or an accelerator"),
        (
            "\n".join(HELIOS.replace("7,u1,2", "7,u1,64").splitlines()[:2]),
            "1 of the jobs of the log fit no cluster .*'7', which asks for 0 cpus and 64 gpus; expected one",
        ),
        (HELIOS.replace("7,u1,2", "7,u1,-2"), "line 2: -2 is negative"),
        ("", "has no column 'job_id'"),
        (HELIOS + "\udcff", "codec can't decode byte 0xff .*expected a file of comma-separated values"),
    ],
)
def test_a_damaged_helios_log_is_refused(tmp_path, text, told):
    (tmp_path / "log.csv").write_text(text, errors="surrogateescape")
    with pytest.raises(InputError, match=told):
        read_queue_log("helios", tmp_path / "log.csv", ROOM)


@pytest.mark.parametrize("name", QUEUE_LOGS)
def test_logs_that_are_no_logs_are_refused(tmp_path, name):
    with pytest.raises(InputError, match="missing"):
        read_queue_log(name, tmp_path / "missing", ROOM)
    for file in ("pai_job_table.csv", "pai_task_table.csv", "log"):
        (tmp_path / file).write_text("[1, 2]\n")
    with pytest.raises(InputError, match="expected"):
        read_queue_log(name, tmp_path if name == "pai" else tmp_path / "log", ROOM)
    if name == "helios":
        with pytest.raises(InputError, match="slots of 0 s"):
            read_queue_log(name, tmp_path / "log", ROOM, slot_s=0)


def test_a_form_that_nobody_knows_is_refused(tmp_path):
    with pytest.raises(InputError, match="form 'azure'; expected one of helios, philly, pai"):
        read_queue_log("azure", tmp_path, ROOM)


def test_s8_a_look_alike_comes_along():
    queue = read_queue_log("helios", HELIOS_LIKE, (EdgeCluster(name="a", cpus=32, gpus=32),))
    assert len(queue.queue) == 400 and {"gpu1", "gpu8", "cpu4"} <= set(queue.kinds)
    assert HELIOS_LIKE.stat().st_size <= 50_000
    problems = [problem_of(queue, oracle=oracle) for oracle in (False, True)]
    blind, bound = (plan_jobs(problem, "srpt").mean_completion_s for problem in problems)
    assert bound < blind
