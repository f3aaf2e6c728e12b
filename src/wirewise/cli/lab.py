"""`wirewise lab`: run a command on a cluster of network namespaces, try Slurm, check support, clean up."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from wirewise import lab, units
from wirewise.cli.output import JsonOption, note, print_table, write_json, write_out
from wirewise.cli.topo import open_topology
from wirewise.errors import LabError

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True, help="A cluster on one machine: run commands on shaped hosts.")


@app.command(context_settings={"allow_interspersed_args": False})
def run(
    command: Annotated[
        list[str], typer.Argument(help="After --: what follows torchrun, a script or -m module.")
    ],
    hosts: Annotated[int, typer.Option(help="Number of hosts, each a network namespace.")] = 4,
    link: Annotated[str, typer.Option(help="Rate of each host's link.")] = "200mbit",
    links: Annotated[str, typer.Option(help="Hosts whose rate differs: 2=50mbit,3=1gbit.")] = "",
    topology: Annotated[
        str | None,
        typer.Option(help="File or preset, such as h4, with hosts and rates, instead of the three above."),
    ] = None,
    nproc: Annotated[int, typer.Option(help="Ranks on each host.")] = 1,
    fault: Annotated[
        list[str] | None,
        typer.Option(
            help="Fault such as kill:2@10s, stop:2@10s, cut:2@10s, heal:2@20s, slow:1:5@3s (link five times slower), "
            "slow-cpu:1:5@3s, link:2:50mbit@5s, all of host 2 or 1; kill:2@5..40s:7 (a random instant, seed 7); "
            "kill:2@bucket:3, stop:2@commit (rank 2 at a named point of a protected training); may be repeated."
        ),
    ] = None,
    change: Annotated[
        list[str] | None,
        typer.Option(help="Change of a link's rate, such as 1=20mbit@5s; may be repeated."),
    ] = None,
    torchrun: Annotated[
        bool, typer.Option(help="Launch by torchrun on each host; --no-torchrun: run the command directly.")
    ] = True,
    timeout: Annotated[float | None, typer.Option(help="Timeout of the job, in seconds.")] = None,
    require: Annotated[
        bool,
        typer.Option("--require", help="Exit code 2 where no lab can be built, instead of loopback."),
    ] = False,
    log_dir: Annotated[Path | None, typer.Option(help="Folder for one log file per host.")] = None,
    json: JsonOption = None,
) -> None:
    """Run a command on every host of a lab; exits with the code of the job."""
    rates = units.parse_links(links)
    if topology is not None:
        shape = lab.Lab.of(open_topology(topology))
        hosts = shape.num_hosts
    else:
        shape = lab.Lab(hosts, link, rates)
    parsed = [lab.parse_fault(text) for text in fault or []] + [parse_change(text) for text in change or []]
    faults = [one for one in parsed if isinstance(one, lab.HostFault)]
    at_points = [check_point(one, hosts * nproc) for one in parsed if isinstance(one, lab.RankFault)]
    arguments: dict[str, Any] = {
        "launcher": "torchrun" if torchrun else "none",
        "timeout_s": timeout,
        "folder": log_dir,
        "listener": lambda host, line: note(f"[host {host}] {line}"),
    }
    ok, reason = lab.available()
    if not ok and require:
        raise LabError(f"no lab can be built here: {reason}")
    with lab.arm_faults(at_points) as points:
        arguments["environment"] = points.variables
        if not ok:
            record, result = _run_on_loopback(
                command, hosts, nproc, reason, bool(rates or faults or topology), arguments
            )
        else:
            with shape as network:
                shown = ", ".join(units.format_rate(rate) for rate in network.rates)
                kind = "links of" if network.pairs is None else "links in pairs, together"
                note(f"lab ({reason}): {hosts} hosts with {kind} {shown}")
                result = network.run(command, processes_per_host=nproc, faults=faults, **arguments)
                counters = network.counters()
            record = {
                "network": "lab",
                "link_bytes_per_s": network.rates,
                "pair_bytes_per_s": network.pairs
                and {f"{a}-{b}": rate for (a, b), rate in network.pairs.rates.items()},
                "hosts": [_host(h, result, counters[h]) for h in range(hosts)],
            }
        missed = points.missed
    record |= {"exit_code": result.exit_code, "seconds": result.seconds, "timed_out": result.timed_out}
    write_json(json, record)
    if json != "-":
        _print_hosts(record)
    if result.timed_out:
        note(f"the job had not ended after {timeout:g} s (--timeout), so it was ended; give it more time")
    if missed:
        raise LabError(
            f"{missed[0]} did not happen: rank {missed[0].rank} never came there. Points are reached by trainings that "
            "wirewise.runtime.recovery protects"
        )
    raise typer.Exit(result.exit_code)


@app.command()
def check(json: JsonOption = None) -> None:
    """Check whether a lab can be built on this machine, and how; exit code 1 if not."""
    ok, reason = lab.available()
    said = f"A lab can be built here {reason}." if ok else f"No lab can be built here: {reason}"
    write_out(json, {"available": ok, "reason": reason}, said)
    raise typer.Exit(0 if ok else 1)


@app.command()
def clean(json: JsonOption = None) -> None:
    """Remove network namespaces, caches and folders left by killed runs of wirewise, and no others."""
    from wirewise.hosts.folders import remove_all_stale
    from wirewise.profile.stalls.cache import remove_stale

    # First: it needs no rights that removing namespaces may lack.
    caches = remove_stale()
    names = lab.clean()
    folders = remove_all_stale()
    found = {"namespaces": names, "caches in memory": caches, "folders": folders}
    said = [f"Removed {len(some)} {what}." for what, some in found.items() if some]
    write_out(json, {"removed": [*names, *caches, *folders]}, *(said or ["There was nothing to remove."]))


@app.command(context_settings={"allow_interspersed_args": False})
def slurm(
    command: Annotated[
        list[str] | None, typer.Argument(help="After --: a command to run on the head; none: a shell.")
    ] = None,
    hosts: Annotated[int, typer.Option(help="Hosts that run jobs: h0, h1, ...")] = 3,
    link: Annotated[str, typer.Option(help="Rate of each host's link.")] = "1gbit",
    cpus: Annotated[int, typer.Option(help="Processors that each host claims to have.")] = 4,
) -> None:
    """Run a shell or a command on a lab cluster with real Slurm, to try sbatch, salloc and srun; exits with its code.

    Hosts, network and daemons are removed when it ends.
    """
    with lab.SlurmCluster(hosts, link, cpus=cpus) as cluster:
        note(f"Slurm on {', '.join(cluster.names)}; this is the head, with partitions main and urgent")
        argv = cluster.command(command or [os.environ.get("SHELL", "/bin/sh")])
        variables = {**os.environ, **cluster.environment}
        if command:
            code = lab.run_owned(argv, environment=variables)
        else:
            # Ctrl-C is the shell's, which has the terminal.
            before = signal.signal(signal.SIGINT, signal.SIG_IGN)
            try:
                code = subprocess.run(argv, env=variables, check=False).returncode
            finally:
                signal.signal(signal.SIGINT, before)
    raise typer.Exit(code if code >= 0 else 128 - code)


def check_point(fault: lab.RankFault, ranks: int) -> lab.RankFault:
    """Check that the injection point and the rank of a fault exist, and return the fault.

    Raises:
        LabError: The point or the rank does not exist.
    """
    from wirewise.runtime.points import POINTS

    if fault.point not in POINTS:
        raise LabError(f"{fault}: there is no point {fault.point!r}; expected one of {', '.join(POINTS)}")
    if fault.rank >= ranks:
        raise LabError(f"{fault}: there is no rank {fault.rank}; expected 0 to {ranks - 1}")
    return fault


def parse_change(text: str) -> lab.HostFault:
    """Parse a link change such as "1=20mbit@5s".

    Raises:
        LabError: The text is malformed.
    """
    host, _, rest = text.partition("=")
    try:
        found = lab.parse_fault(f"link:{host}:{rest}")
    except LabError as error:
        raise LabError(f"change {text!r} is not understood; expected HOST=RATE@SECONDS") from error
    assert isinstance(found, lab.HostFault)
    return found


def _run_on_loopback(
    command: Sequence[str], hosts: int, nproc: int, reason: str, shaped: bool, arguments: dict[str, Any]
) -> tuple[dict[str, Any], lab.JobResult]:
    ignored = " Links and faults of hosts are ignored." if shaped else ""
    note(f"loopback: no lab can be built here ({reason}). {hosts * nproc} ranks share one host.{ignored}")
    with lab.Loopback() as loopback:
        result = loopback.run(command, processes_per_host=hosts * nproc, **arguments)
    record = {"network": "loopback", "reason": reason, "link_bytes_per_s": None}
    return record | {"hosts": [_host(0, result, None)]}, result


def _host(host: int, result: lab.JobResult, counters: lab.HostBytes | None) -> dict[str, Any]:
    return {
        "host": host,
        "exit_codes": [c for c, h in zip(result.exit_codes, result.hosts, strict=True) if h == host],
        "tx_bytes": counters and counters.tx_bytes,
        "rx_bytes": counters and counters.rx_bytes,
    }


def _print_hosts(record: dict[str, Any]) -> None:
    rows = []
    for host in record["hosts"]:
        sizes = [units.format_size(b) if b is not None else "-" for b in (host["tx_bytes"], host["rx_bytes"])]
        rows.append([str(host["host"]), *sizes, " ".join(map(str, host["exit_codes"]))])
    title = f"{record['network']}, {record['seconds']:.1f} s" + (", timed out" if record["timed_out"] else "")
    print_table(["host", "sent", "received", "exit codes"], rows, title=title)
