import json
import os
import sys

import pytest
from typer.testing import CliRunner

from wirewise.cli.lab import app, parse_change
from wirewise.errors import InputError, LabError
from wirewise.lab import parse_fault
from wirewise.units import parse_links


def invoke(*arguments):
    return CliRunner().invoke(app, list(arguments))


@pytest.mark.lab
def test_run_reports_bytes_and_exit_codes_of_every_host(tmp_path):
    file = tmp_path / "run.json"
    done = invoke(
        "run", "--hosts", "2", "--link", "100mbit", "--links", "1=10mbit", "--no-torchrun",
        "--log-dir", str(tmp_path), "--json", str(file), "--",
        "sh", "-c", "echo I am $WIREWISE_HOST; exit $((WIREWISE_HOST * 3))",
    )  # fmt: skip
    assert done.exit_code == 3
    record = json.loads(file.read_text())
    assert (record["network"], record["exit_code"], record["timed_out"]) == ("lab", 3, False)
    assert record["link_bytes_per_s"] == [12_500_000, 1_250_000]
    assert [h["exit_codes"] for h in record["hosts"]] == [[0], [3]]
    assert all(h["tx_bytes"] >= 0 and h["rx_bytes"] >= 0 for h in record["hosts"])
    assert "[host 1] I am 1" in done.output
    assert (tmp_path / "host-0.log").read_text() == "I am 0\n"


@pytest.mark.lab
def test_run_carries_faults_out(tmp_path):
    file = tmp_path / "run.json"
    done = invoke(
        "run", "--hosts", "2", "--fault", "kill:1@0.3s", "--timeout", "30", "--no-torchrun",
        "--json", str(file), "--", "sh", "-c", "[ $WIREWISE_HOST = 0 ] || sleep 300",
    )  # fmt: skip
    assert done.exit_code == 137
    assert [h["exit_codes"] for h in json.loads(file.read_text())["hosts"]] == [[0], [-9]]


@pytest.mark.lab
def test_a_stopped_host_runs_again_when_it_is_healed():
    done = invoke(
        "run", "--hosts", "2", "--fault", "stop:1@0.1s", "--fault", "heal:1@0.5s", "--no-torchrun", "--",
        "sh", "-c", "[ $WIREWISE_HOST = 0 ] || { sleep 0.25; exit 3; }",
    )  # fmt: skip
    assert done.exit_code == 3


def test_run_without_a_lab_is_labelled_loopback(monkeypatch, tmp_path):
    monkeypatch.setattr("wirewise.lab.available", lambda: (False, "ip not found; install iproute2"))
    file = tmp_path / "run.json"
    done = invoke("run", "--no-torchrun", "--fault", "kill:1@1s", "--json", str(file), "--", "true")
    assert done.exit_code == 0
    record = json.loads(file.read_text())
    assert (record["network"], record["link_bytes_per_s"]) == ("loopback", None)
    assert record["reason"] == "ip not found; install iproute2"
    assert "Links and faults of hosts are ignored" in done.output


POINTS = """
from wirewise.runtime import points
points.announce_position(0, 4)
points.notify_point("bucket", 3)
print("alive")
"""


@pytest.mark.parametrize(
    ("fault", "code", "told"),
    [
        ("kill:0@bucket:3", 137, ""),
        ("kill:0@bucket:3#4", 137, ""),
        ("kill:0@bucket:3#5", 1, "kill:0@bucket:3#5 did not happen: rank 0 never came there"),
        ("stop:0@bukcet:3", 1, "stop:0@bukcet:3: there is no point 'bukcet'; expected one of batch, forward"),
        ("kill:1@bucket:3", 1, "kill:1@bucket:3: there is no rank 1; expected 0 to 0"),
    ],
)
def test_ranks_fail_at_named_points(monkeypatch, fault, code, told):
    monkeypatch.setattr("wirewise.lab.available", lambda: (False, "ip not found"))
    done = invoke(
        "run", "--hosts", "1", "--no-torchrun", "--fault", fault, "--", sys.executable, "-c", POINTS
    )
    assert done.exit_code == code and told in str(done.exception)
    assert ("alive" in done.output) == ("never" in told)


def test_a_job_that_takes_too_long_is_said_to(monkeypatch):
    monkeypatch.setattr("wirewise.lab.available", lambda: (False, "ip not found"))
    done = invoke("run", "--hosts", "1", "--timeout", "0.3", "--no-torchrun", "--", "sleep", "300")
    assert done.exit_code == 124
    assert "the job had not ended after 0.3 s (--timeout)" in done.stderr


def test_run_can_insist_on_a_lab(monkeypatch):
    monkeypatch.setattr("wirewise.lab.available", lambda: (False, "ip not found"))
    done = invoke("run", "--require", "--no-torchrun", "--", "true")
    assert isinstance(done.exception, LabError)
    assert "no lab can be built here: ip not found" in str(done.exception)


@pytest.mark.lab
def test_run_changes_links(tmp_path):
    file = tmp_path / "run.json"
    done = invoke(
        "run", "--hosts", "2", "--change", "1=20mbit@0.1s", "--no-torchrun", "--json", str(file), "--",
        # Far longer than the change may be late.
        "sleep", "3",
    )  # fmt: skip
    assert done.exit_code == 0
    assert json.loads(file.read_text())["link_bytes_per_s"] == [25e6, 2.5e6]


def test_changes_are_read():
    assert parse_change("1=20mbit@5s") == parse_fault("link:1:20mbit@5s")
    for text in ("1=20mbit", "20mbit@5s", "1=fast@5s", "1=20mbit@soon"):
        with pytest.raises(LabError, match="expected HOST=RATE@SECONDS"):
            parse_change(text)


def test_check_says_whether_and_how(monkeypatch):
    monkeypatch.setattr("wirewise.lab.available", lambda: (False, "ip not found"))
    done = invoke("check", "--json", "-")
    assert (done.exit_code, json.loads(done.stdout)) == (1, {"available": False, "reason": "ip not found"})
    monkeypatch.setattr("wirewise.lab.available", lambda: (True, "as root"))
    done = invoke("check")
    assert (done.exit_code, done.stdout) == (0, "A lab can be built here as root.\n")


def test_clean_names_what_it_removed(monkeypatch):
    # All are replaced: tests that run beside this one leave caches of dead processes too.
    monkeypatch.setattr("wirewise.lab.clean", lambda: ["ww-1-2-3-h0"])
    monkeypatch.setattr("wirewise.profile.stalls.cache.remove_stale", lambda: ["/dev/shm/wirewise-cache-x"])
    monkeypatch.setattr("wirewise.hosts.folders.remove_all_stale", lambda: ["/tmp/wirewise-faults-1-2-3-x"])
    removed = ["ww-1-2-3-h0", "/dev/shm/wirewise-cache-x", "/tmp/wirewise-faults-1-2-3-x"]
    assert json.loads(invoke("clean", "--json", "-").stdout) == {"removed": removed}


def test_links_are_read():
    assert parse_links("2=50mbit, 3=1gbit") == {2: "50mbit", 3: "1gbit"}
    assert parse_links("") == {}


@pytest.mark.parametrize("text", ["2", "x=1gbit", "1=1gbit,1=2gbit", "-1=1gbit", "1=fast"])
def test_malformed_links_are_refused(text):
    with pytest.raises(InputError, match="is not understood"):
        parse_links(text)


def test_a_malformed_fault_is_refused():
    done = invoke("run", "--fault", "explode", "--", "true")
    assert isinstance(done.exception, LabError)
    assert os.environ  # the process lives on


@pytest.mark.lab
@pytest.mark.parametrize(("name", "pairs"), [("h4-quarter", 6), ("lab-3@50mbit", None)])
def test_run_builds_a_topology(tmp_path, name, pairs):
    file = tmp_path / "run.json"
    done = invoke("run", "--topology", name, "--no-torchrun", "--json", str(file), "--", "true")
    assert done.exit_code == 0, done.output
    record = json.loads(file.read_text())
    if pairs:
        assert record["pair_bytes_per_s"]["0-1"] == 50e6 and len(record["pair_bytes_per_s"]) == pairs
    else:
        assert record["pair_bytes_per_s"] is None and record["link_bytes_per_s"] == [6.25e6] * 3


def test_a_machine_is_no_topology_for_a_lab():
    done = invoke("run", "--topology", "dgx-1v", "--", "true")
    assert isinstance(done.exception, LabError) and "which is what the lab can build" in str(done.exception)


@pytest.mark.slurm
@pytest.mark.slow
def test_slurm_runs_a_command_on_the_head():
    done = invoke(
        "slurm", "--hosts", "1", "--", "sh", "-c", "[ $(srun hostname)-$(hostname) = h0-head ] && exit 7"
    )
    assert (done.exit_code, "Slurm on h0;" in done.output) == (7, True)
