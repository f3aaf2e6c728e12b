"""`wirewise recover`: agent of this host for a training script with failure recovery, on one or several hosts."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import msgspec

from wirewise import options as opt
from wirewise.cli.options import GivenOptions
from wirewise.cli.output import note, print_text, run_folder, write_json
from wirewise.errors import InputError
from wirewise.hosts.allocation import HostPlace, current_host
from wirewise.hosts.interfaces import interface_of, interface_towards
from wirewise.runtime.recovery.limits import AgentLimits
from wirewise.runtime.recovery.resume_options import ResumeOptions

__all__ = ["HostOptions", "recover"]

_PORT = 29500
"""The port that torchrun has by default."""
_LOG_LEVEL = "TORCH_CPP_LOG_LEVEL"
_OF_RANKS = (
    "RANK",
    "LOCAL_RANK",
    "GROUP_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
)


class HostOptions(opt.Options, frozen=True, kw_only=True):
    """Ranks of the training, and this host's index among its hosts."""

    hosts: Annotated[
        int,
        opt.about("Hosts of the training; 0: those of srun's step, or this one.", alias="--nnodes", ge=0),
    ] = 0
    node_rank: Annotated[opt.Natural, opt.about("Number of this host, from 0 on; host 0 coordinates.")] = 0
    address: Annotated[
        str, opt.about("Address of host 0, at which the other hosts reach it.", alias="--master-addr")
    ] = ""
    port: Annotated[
        int,
        opt.about(
            "Port on host 0, the same on all hosts; 0: 29500 with several hosts, else any that is free.",
            alias="--master-port",
            ge=0,
            lt=65536,
        ),
    ] = 0
    ranks_per_host: Annotated[opt.Count, opt.about("Ranks on each host.", alias="--nproc-per-node")] = 1
    spares: Annotated[opt.Natural, opt.about("Warm spare processes on each host.")] = 1
    elastic: Annotated[bool, opt.about("Continue with fewer ranks while no spare is available.")] = False
    token: Annotated[
        str,
        opt.about(
            "Secret of the job, the same on all hosts; the variable WIREWISE_TOKEN keeps it out of lists of processes."
        ),
    ] = ""


def recover(
    command: list[str],
    cli_options: GivenOptions[HostOptions],
    limits: AgentLimits,
    changes: ResumeOptions,
    out: Path | None,
    json: str | None,
) -> None:
    """Start the agent of this host, and train to the end.

    Raises:
        InputError: Hosts and options contradict each other, or the command is no script.
        PeerError: The training has failed; the message says why.
    """
    script, arguments = _script(command)
    asked = cli_options.record()
    place = _place(asked, cli_options.named)
    several = len(place.hosts) > 1
    _prepare(place, asked.token)
    Agent, run_script = _agent()
    # Hosts that share a folder do not share that of an agent.
    folder = out / f"host-{place.host}" if out is not None and several else out
    with run_folder(folder, f"recover-{place.host}" if several else "recover") as logs:
        agent = Agent(
            run_script,
            [script, arguments],
            ranks=asked.ranks_per_host * len(place.hosts),
            host=place.host,
            hosts=len(place.hosts),
            spares=asked.spares,
            address=place.hosts[0],
            port=place.port,
            folder=logs,
            elastic=asked.elastic,
            token=asked.token or None,
            environment=changes.environment(),
            **msgspec.structs.asdict(limits),
        )
        note(
            f"host {place.host} of {len(place.hosts)}: {asked.ranks_per_host} ranks and {asked.spares} spares of "
            f"{script}; logs of the processes in {logs}"
        )
        outcome = agent.run()
    for one in outcome.recoveries if place.host == 0 else ():
        seconds = f"{one.committed_s - one.seen_s:.2f} s" if one.committed_s else "no"
        lost = ", ".join(f"rank {rank} ({cause})" for rank, cause in zip(one.ranks, one.causes, strict=False))
        note(
            f"generation {one.generation}: {lost or 'more ranks'}; {seconds} to a new step, from step {one.step}"
        )
    note(f"host {place.host}: the training has come to its end")
    write_json(json, msgspec.to_builtins(outcome))


def _agent() -> tuple[Any, Any]:
    """The agent, imported so that torch does not warn of each of its waits for the store that nothing has ended."""
    quiet = os.environ.setdefault(_LOG_LEVEL, "ERROR") == "ERROR"
    from wirewise.runtime.recovery import Agent, run_script

    if quiet:
        # Ranks warn as they do elsewhere.
        del os.environ[_LOG_LEVEL]
    return Agent, run_script


def _script(command: list[str]) -> tuple[str, list[str]]:
    words = command[1:] if Path(command[0]).name.startswith("python") else command
    if Path(command[0]).name == "torchrun" or words[:1] == ["-m"] or not (words and Path(words[0]).is_file()):
        raise InputError(
            f"got the command {' '.join(command)!r}; expected SCRIPT.py and its arguments behind --: a file that "
            "calls wirewise.runtime.recovery.protect; --ranks-per-host says what torchrun's --nproc-per-node does"
        )
    return words[0], words[1:]


def _place(options: HostOptions, named: frozenset[str]) -> HostPlace:
    """This host among the hosts of the training: by the options, or by srun."""
    found = current_host() if not named & {"hosts", "node_rank", "address"} else None
    if found is not None:
        return found._replace(port=options.port or found.port)
    hosts = options.hosts or 1
    if hosts > 1 and not options.address:
        raise InputError(
            f"got --hosts {hosts} without --address; expected the address of host 0, the same on all hosts"
        )
    if options.node_rank >= hosts:
        raise InputError(
            f"got --node-rank {options.node_rank} of --hosts {hosts}; expected hosts counted from 0, and --hosts"
        )
    names = (options.address or "127.0.0.1",) + ("",) * (hosts - 1)
    return HostPlace(options.node_rank, names, options.port or (_PORT if hosts > 1 else 0))


def _prepare(place: HostPlace, token: str) -> None:
    """Variables that ranks inherit: the interface that leads to the other hosts, and no place of a rank."""
    for name in _OF_RANKS:
        # Of whoever started this command; a process has its role only once `protect` has returned.
        os.environ.pop(name, None)
    if len(place.hosts) > 1 and "GLOO_SOCKET_IFNAME" not in os.environ:
        address = place.hosts[0]
        interface = interface_towards((address, ""), 1) if place.host else interface_of(address)
        # Many systems let a host's own name stand for 127.0.1.1.
        if interface not in (None, "lo"):
            os.environ["GLOO_SOCKET_IFNAME"] = interface
    if len(place.hosts) > 1 and not (token or os.environ.get("WIREWISE_TOKEN")):
        print_text(
            "No secret of the job: whoever reaches its store may write to it. Set WIREWISE_TOKEN to one on all hosts.",
            err=True,
        )
