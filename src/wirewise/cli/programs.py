"""`wirewise check` and `wirewise export`: prove programs correct, and write them in formats of other runtimes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from wirewise import collective
from wirewise.cli import mscclpp_plans
from wirewise.cli.msccl import File
from wirewise.cli.output import print_text, write_json
from wirewise.cli.requests import Check, Export
from wirewise.cli.sources import is_msccl, kind_of, program_of
from wirewise.cli.topo import open_topology
from wirewise.collective import Network, Program, network
from wirewise.collective.exporters import chakra, msccl, mscclpp, mscclpp_machine, nccl_graph, nccl_tuner
from wirewise.collective.exporters.msccl.model import limits
from wirewise.collective.exporters.rings import Ring, pack_rings, rings_of, with_bandwidth
from wirewise.cost import nccl
from wirewise.errors import InputError, ProgramError
from wirewise.files import atomic_file
from wirewise.topology import Topology
from wirewise.units import parse_size

__all__ = ["FORMATS", "check", "export"]


def check(options: Check) -> bool:
    """Check a program, an MSCCL file or an MSCCL++ plan; print the first fault.

    Returns:
        True if no fault was found, also if the file does not define the expected result.
    """
    if is_msccl(options.source):
        file = File.read(options.source)
        broken = msccl.violations(file.text, options.dialect, options.root, options.fifo)
        found = [f"{v.where}: {v.rule}: {v.message}" for v in broken]
        unknown = None if found else msccl.result_unknown(file.text, options.dialect)
        right = f"fits {options.dialect}'s MSCCL, and ranks end with the right values"
        if not found and (most_bytes := msccl.largest_call_bytes(file.algorithm(), options.fifo)):
            right += f" in calls of up to {most_bytes} bytes, which its maxBytes keeps to"
        return print_verdict(options.source, found, right, options.json, unknown)
    if kind_of(options.source) == "mscclpp":
        plan = mscclpp_plans.read(options.source)
        found = list(mscclpp_machine.faults(plan))
        right = f"{plan.name}: every thread block of {len(plan.gpus)} ranks ends, and ranks end with the right values"
        return print_verdict(
            options.source,
            found,
            right,
            options.json,
            None if found else mscclpp_machine.result_unknown(plan),
        )
    program = program_of(options.source)
    fifo = 1 if options.fifo is None else options.fifo
    found = [f"{fault.kind}: {fault.message}" for fault in collective.faults(program, fifo)]
    right = (
        f"{program.name} is right: {program.collective} of {program.ranks} ranks in "
        f"{program.steps} steps and {len(program.messages())} messages"
    )
    return print_verdict(options.source, found, right, options.json)


def print_verdict(
    source: str, faults: Sequence[str], right: str, json: str | None, unknown: str | None = None
) -> bool:
    """Write and print the verdict and its reason.

    Args:
        source: Source that was checked.
        faults: Fault that was found. None if there is none.
        right: Message for a correct program.
        json: Target of `JsonOption`; the record has `verdict` ("right", "wrong" or "not checked"), `reason`, `faults`.
        unknown: Why the result could not be compared. None if it was.

    Returns:
        True if no fault was found.
    """
    verdict = "wrong" if faults else "not checked" if unknown is not None else "right"
    reason = faults[0] if faults else right if unknown is None else unknown
    write_json(
        json, {"verdict": verdict, "reason": reason, "right": verdict == "right", "faults": list(faults)}
    )
    if json != "-":
        more = f" (and {len(faults) - 1} more: --json - lists them)" if len(faults) > 1 else ""
        print_text(f"{source}: {'not checked: ' if verdict == 'not checked' else ''}{reason}{more}")
    return not faults


def export(options: Export) -> None:
    """Write a program in another format, and print how to use the file."""
    form = FORMATS[options.to]
    program = program_of(options.source)
    collective.check(program)
    files = form.write(program, options)
    write_json(options.json, {"format": options.to, "files": [str(path) for path in files]})
    if options.json != "-":
        names = f"{files[0]}" if len(files) == 1 else f"{files[0]} to {files[-1].name}"
        print_text(f"Wrote {names}. {form.use.format(file=options.out)}")


@dataclass(frozen=True)
class _Format:
    write: Callable[[Program, Export], Sequence[Path]]
    use: str
    """How to use the file."""


def _bytes_of(size: str | None) -> int:
    return parse_size(size) if size is not None else 0


def _written(options: Export, text: str) -> list[Path]:
    with atomic_file(options.out) as file:
        file.write(text.encode())
    return [options.out]


def _to_msccl(dialect: msccl.Dialect) -> Callable[[Program, Export], list[Path]]:
    def write(program: Program, options: Export) -> list[Path]:
        algorithm = msccl.lower(
            program,
            protocol=options.protocol,
            in_place=options.in_place,
            instances=options.instances,
            channels=options.channels,
            fuse=options.fuse,
            most_steps=limits(dialect).steps,
            min_bytes=_bytes_of(options.min_size),
            max_bytes=_bytes_of(options.max_size),
        )
        text = msccl.dumps(algorithm, dialect)
        msccl.check(text, dialect, program.root)
        return _written(options, text)

    return write


def _to_mscclpp(program: Program, options: Export) -> list[Path]:
    return _written(
        options,
        mscclpp.dumps(
            program,
            in_place=options.in_place,
            instances=options.instances,
            min_bytes=_bytes_of(options.min_size),
            max_bytes=_bytes_of(options.max_size),
            channel=options.channel_kind,
        ),
    )


@dataclass(frozen=True)
class _Place:
    """A topology as NCCL sees it."""

    network: Network
    hosts: list[list[int]]
    nvlink: bool


def _place(topology: Topology, program: Program) -> _Place:
    if len(topology.ranks) != program.ranks:
        raise InputError(
            f"topology {topology.name!r} has {len(topology.ranks)} ranks and program {program.name!r} "
            f"{program.ranks}; choose a topology of as many"
        )
    of_rank = [device.host for device in topology.devices] or list(topology.ranks)
    hosts = [[r for r, own in enumerate(of_rank) if own == host] for host in dict.fromkeys(of_rank)]
    nvlink = any(link.kind == "nvlink" for link in topology.links)
    # Within one host NCCL stays on NVLink where it has it.
    kinds = {"nvlink"} if nvlink and len(hosts) == 1 else None
    return _Place(network(topology, kinds=kinds), hosts, nvlink)


def _to_tuner(program: Program, options: Export) -> list[Path]:
    if options.topology is None:
        raise InputError("nccl-tuner needs --topology NAME or FILE: what is quickest depends on the machine")
    place = _place(open_topology(options.topology), program)
    rings = pack_rings(place.network)
    machine = nccl.machine(rings, place.hosts, nvlink=place.nvlink, gpu=options.gpu)
    rows = [
        nccl_tuner.Row(
            program.collective.replace("_", ""),
            choice.min_bytes,
            choice.max_bytes,
            choice.algorithm,
            choice.protocol,
            hosts=machine.hosts,
            ranks=machine.ranks,
        )
        for choice in nccl.choices(program.collective, machine)
    ]
    return _written(options, nccl_tuner.dumps(rows))


def _to_graph(program: Program, options: Export) -> list[Path]:
    place = _place(open_topology(options.topology), program) if options.topology is not None else None
    rings = _rings(program, place)
    hosts = place.hosts if place else [list(range(program.ranks))]
    inside: nccl_graph.LinkType = "NVL" if place and place.nvlink else "SYS"
    return _written(options, nccl_graph.dumps(rings, hosts, inside=inside))


def _rings(program: Program, place: _Place | None) -> list[Ring]:
    """The program's own; the topology's where the program is no ring."""
    try:
        rings = rings_of(program)
    except ProgramError:
        if place is None:
            raise
        return pack_rings(place.network)
    return with_bandwidth(rings, place.network) if place else rings


_MSCCL_USE = "Check it with `wirewise check {file}`; microsoft/msccl loads it with MSCCL_XML_FILES={file}"
FORMATS: dict[str, _Format] = {
    "msccl-xml": _Format(_to_msccl("microsoft"), _MSCCL_USE + " NCCL_ALGO=MSCCL,RING,TREE."),
    "msccl-xml-azure": _Format(
        _to_msccl("azure"), "Azure's executor loads every file of the folder that MSCCL_ALGO_DIR names."
    ),
    "mscclpp-json": _Format(
        _to_mscclpp, "MSCCL++ reads it as an execution plan, for ranks that map each other's memory."
    ),
    "nccl-tuner": _Format(
        _to_tuner, "NCCL takes it through its example tuner plugin, with NCCL_TUNER_CONFIG_FILE={file}."
    ),
    "nccl-graph": _Format(_to_graph, "NCCL takes it with NCCL_GRAPH_FILE={file}."),
    "chakra": _Format(
        lambda program, asked: chakra.save(program, asked.out, parse_size(asked.size)),
        "ASTRA-sim takes it with --workload-configuration={file}.",
    ),
}
"""Formats by name."""
