"""`wirewise topo`: topologies from presets, files and measurements."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from wirewise import topology
from wirewise.cli.options import need_ranks
from wirewise.cli.output import JsonOption, print_table, print_text, write_json, write_out
from wirewise.errors import TopologyError
from wirewise.sim.message_costs import PROBE_BYTES, fit_messages, probe_programs
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
    """Show hosts, devices, links, and how wide the path between any two ranks is."""
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
    arrow = {"both": "<->", "one": "->"}
    links = [
        [
            f"{link.source} {arrow[link.direction]} {link.target}",
            link.kind,
            format_rate(link.bandwidth_bytes_per_s),
            f"{link.latency_s * 1e6:g} us",
        ]
        for link in found.links
    ]
    print_table(["link", "kind", "each direction", "latency"], links)
    if len(found.ranks) <= _SHOWN_RANKS:
        print_table(["from \\ to", *found.ranks], _widths(found), title="widest path")


@app.command()
def check(file: Annotated[Path, typer.Argument(help="A topology file.")], json: JsonOption = None) -> None:
    """Check a file: exit code 0 if it can be used, 2 with the line of the first fault."""
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
    """Write a topology as TOML, to be edited."""
    found = open_topology(source)
    _write(found, file)


@app.command()
def probe(
    out: Annotated[Path | None, typer.Option("--out", "-o", help="File that takes the topology.")] = None,
    name: Annotated[str, typer.Option(help="Name of the topology.")] = "measured",
    json: JsonOption = None,
) -> None:
    """Measure the links between all ranks of a running group, and what messages cost them.

    Start it by torchrun or `wirewise lab run`.
    """
    need_ranks("topo probe -o FILE")
    # These need torch, which takes seconds to import.
    from wirewise.profile.pairs import probe_topology
    from wirewise.runtime.collective.measure import program_seconds, shared_processors
    from wirewise.trials.rank import joined

    with joined(_TIMEOUT_S) as transport:
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
        typer.FileText, typer.Argument(help="Output of `nvidia-smi topo -m`; - for standard input.")
    ],
    out: Annotated[Path | None, typer.Option("--out", "-o", help="File that takes the topology.")] = None,
    name: Annotated[str, typer.Option(help="Name of the topology.")] = "machine",
    nvlink: Annotated[str, typer.Option(help="Rate of one NVLink, each way.")] = "200gbit",
    pcie: Annotated[str, typer.Option(help="Rate of a device's PCIe, each way.")] = "252gbit",
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


_SHOWN_RANKS = 16


def open_topology(source: str) -> topology.Topology:
    """A file if there is one or the name looks like one, else a preset."""
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
