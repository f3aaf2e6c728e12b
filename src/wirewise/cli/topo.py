"""`wirewise topo`: topologies from presets, files and measurements."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from wirewise import topology
from wirewise.cli.options import need_ranks
from wirewise.cli.output import JsonOption, print_table, print_text, writable_file, write_json, write_out
from wirewise.errors import InputError, TopologyError
from wirewise.topology.machines import MACHINES
from wirewise.units import format_rate, parse_rate

__all__ = ["app", "open_topology"]

app = typer.Typer(
    no_args_is_help=True, help="Topologies: hosts, devices and links, from presets, files and measurements."
)

_TIMEOUT_S = 120.0
"""Seconds that ranks may take to start, or to answer one another."""

_Source = Annotated[
    str, typer.Argument(metavar="NAME|FILE", help="A preset (`wirewise topo list`) or a file.")
]

_OutOption = Annotated[
    Path | None,
    typer.Option("--out", "-o", help="File that takes the topology.", callback=writable_file),
]


@app.command("list")
def list_(json: JsonOption = None) -> None:
    """List the presets."""
    found = [make() for make in topology.PRESETS.values()]
    rows = [[t.name, str(len(t.hosts)), str(len(t.ranks)), str(len(t.links)), t.description] for t in found]
    machines = ", ".join(f"{kind}xN" for kind in MACHINES)
    write_out(
        json,
        {"topologies": [_counts(t) for t in found]},
        (["name", "hosts", "ranks", "links", "description"], rows),
        f"h4 and h4-quarter are known, too, and lab-N@RATE, lab-NxR, pcie-N, {machines} for any N, "
        f"behind a fabric with {', '.join(f'@{kind}' for kind in topology.FABRICS)}, such as dgx-h100x16@fat-tree/2.",
    )


@app.command()
def show(source: _Source, json: JsonOption = None) -> None:
    """Show hosts, devices, links, and the path bandwidth between any two ranks."""
    found = open_topology(source)
    write_json(json, msgspec.to_builtins(found))
    if json == "-":
        return
    print_text(f"{found.name}: {found.description}" if found.description else found.name)
    hosts = [
        [host.name, " ".join(d.name for d in found.devices if d.host == host.name) or "-"]
        for host in found.hosts
    ]
    print_table(["host", "devices"], hosts)
    print_table(*found.link_table())
    if len(found.ranks) <= _SHOWN_RANKS:
        print_table(["from \\ to", *found.ranks], _widths(found), title="widest path")


@app.command()
def check(file: Annotated[Path, typer.Argument(help="A topology file.")], json: JsonOption = None) -> None:
    """Check a topology file: exit code 0 if it is valid, 2 and the line of the first fault if not."""
    found = topology.load(file)
    pairs = ((a, b) for a in found.ranks for b in found.ranks if a != b)
    apart = [pair for pair in pairs if not topology.path_between(found, *pair)]
    write_json(json, {**_counts(found), "unreachable": apart})
    if apart:
        shown = ", ".join(f"{a} to {b}" for a, b in apart[:4])
        raise TopologyError(
            f"{file}: no path for {len(apart)} pairs of ranks ({shown}{', ...' if len(apart) > 4 else ''}); "
            "add the links between them"
        )
    if json != "-":
        counts = f"{len(found.hosts)} hosts, {len(found.ranks)} ranks, {len(found.links)} links"
        print_text(f"{file}: {found.name} is fine: {counts}, every rank reaches every other")


@app.command()
def export(
    source: _Source,
    file: Annotated[Path | None, typer.Argument(help="Where to write; stdout by default.")] = None,
) -> None:
    """Write a topology as TOML, for editing."""
    found = open_topology(source)
    _write(found, file)


@app.command()
def probe(
    out: _OutOption = None,
    name: Annotated[str, typer.Option(help="Name of the topology.")] = "measured",
    json: JsonOption = None,
) -> None:
    """Measure the links between all ranks of a running group, and the per-message cost.

    Start it with torchrun or `wirewise lab run`.
    """
    need_ranks("topo probe -o FILE")
    # These need torch, which takes seconds to import.
    from wirewise.profile.pairs import probe_topology
    from wirewise.runtime.collective.measure import program_seconds, shared_processors
    from wirewise.sim.message_costs import PROBE_BYTES, fit_messages, probe_programs
    from wirewise.trials.rank import join_job

    with join_job(_TIMEOUT_S) as transport:
        found = probe_topology(name)
        programs = probe_programs(len(found.ranks))
        measured = program_seconds(programs, PROBE_BYTES, timeout_s=_TIMEOUT_S)
        shared = shared_processors()
    if transport.rank:
        return
    # Processors that others use too are fewer: what the ranks got of them is found out.
    found = fit_messages(found, programs, measured, processors=range(1, shared + 1) if shared else (0,))
    if out is not None:
        topology.save(found, out)
    write_json(json, msgspec.to_builtins(found))
    if json != "-":
        print_table(["from \\ to", *found.ranks], _widths(found), title="widest path")


@app.command()
def smi(
    file: Annotated[
        typer.FileText,
        typer.Argument(help="Output of `nvidia-smi topo -m`; - for standard input.", errors="replace"),
    ],
    out: _OutOption = None,
    name: Annotated[str, typer.Option(help="Name of the topology.")] = "machine",
    nvlink: Annotated[str, typer.Option(help="Rate of one NVLink, in each direction.")] = "200gbit",
    pcie: Annotated[str, typer.Option(help="Rate of a device's PCIe, in each direction.")] = "252gbit",
    port: Annotated[str, typer.Option(help="Rate of a network port.")] = "100gbit",
) -> None:
    """Write the topology of a machine with NVIDIA GPUs as TOML.

    nvidia-smi topo -m | wirewise topo smi - -o machine.toml
    """
    found = topology.from_smi(
        file.read(),
        name=name,
        nvlink_bytes_per_s=parse_rate(nvlink),
        pcie_bytes_per_s=parse_rate(pcie),
        port_rate=port,
    )
    _write(found, out)


@app.command("import")
def import_(
    file: Annotated[
        Path, typer.Argument(help="Topology file of NCCL or RCCL, or what `scontrol show topology` printed.")
    ],
    out: _OutOption = None,
    hosts: Annotated[
        int, typer.Option(help="Machines of this kind, joined by their network ports (NCCL, RCCL).")
    ] = 1,
    name: Annotated[str | None, typer.Option(help="Name of the topology. Defaults to the file's.")] = None,
    rate: Annotated[
        str | None, typer.Option(help="Rate of each node's link, such as 25gbit (Slurm).")
    ] = None,
    uplink: Annotated[
        str | None,
        typer.Option(help="Rate of each link between switches (Slurm). Defaults to that of all nodes below."),
    ] = None,
) -> None:
    """Convert a topology file of NCCL or RCCL, or Slurm's tree of switches, to TOML.

    NCCL_TOPO_DUMP_FILE=topo.xml writes such a file. Properties that it does not define are reported on stderr.
    """
    try:
        text = file.read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise TopologyError(
            f"cannot read {str(file)!r}: {error}; expected a topology file of NCCL, or of Slurm"
        ) from error
    is_slurm = text.lstrip().startswith(("SwitchName=", "#"))
    if is_slurm and (hosts != 1 or rate is None):
        raise InputError(
            f"got {'--hosts' if hosts != 1 else 'no --rate'} for the tree of Slurm in {file}; expected --rate, which "
            "Slurm does not know, and no --hosts, which it does"
        )
    if not is_slurm and (rate or uplink):
        raise InputError(
            f"got --rate or --uplink for {file}, which is not of Slurm; its rates are in the file"
        )
    try:
        found = (
            topology.from_slurm_tree(
                text,
                rate_bytes_per_s=parse_rate(rate),
                uplink_bytes_per_s=None if uplink is None else parse_rate(uplink),
                name=name or file.stem,
            )
            if rate is not None
            else topology.from_nccl_xml(text, name=name or file.stem, hosts=hosts)
        )
    except TopologyError as error:
        raise TopologyError(f"{file}: {error}") from error
    for note in found.notes:
        print_text(f"note: {note}", err=True)
    _write(found.topology, out)


_SHOWN_RANKS = 16


def open_topology(source: str) -> topology.Topology:
    """Open a topology: a file if it exists or the name looks like a path, else a preset."""
    if Path(source).is_file() or source.endswith(".toml"):
        return topology.load(source)
    return topology.preset(source)


def _write(found: topology.Topology, file: Path | None) -> None:
    if file is None:
        typer.echo(topology.dumps(found), nl=False)
    else:
        topology.save(found, file)


def _counts(found: topology.Topology) -> dict[str, object]:
    return {
        "name": found.name,
        "description": found.description,
        "hosts": len(found.hosts),
        "ranks": len(found.ranks),
        "links": len(found.links),
    }


def _widths(found: topology.Topology) -> list[list[str]]:
    rows = []
    for a in found.ranks:
        paths = [None if a == b else topology.path_between(found, a, b) for b in found.ranks]
        rows.append(
            [a, *("-" if path is None else format_rate(path.bandwidth_bytes_per_s) for path in paths)]
        )
    return rows
