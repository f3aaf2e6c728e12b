"""`wirewise show`: plans as tables; collective programs and recorded runs as pages; pages as pictures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import msgspec

from wirewise import collective, plans, topology
from wirewise.cli import msccl, mscclpp_plans
from wirewise.cli.output import note, print_table, print_text, write_json, write_out
from wirewise.cli.requests import Request
from wirewise.cli.sources import is_name, kind_of
from wirewise.cli.topo import open_topology
from wirewise.collective.builders import algorithms, build
from wirewise.decoding import decode_json
from wirewise.errors import InputError, ProgramError, TopologyError
from wirewise.plans import (
    CollectivePlan,
    DeploymentPlan,
    JobPlan,
    ParallelPlan,
    Plan,
    RecoveryPlan,
    ReshardPlan,
    StagePlan,
)
from wirewise.units import parse_size

if TYPE_CHECKING:
    from wirewise.collective import Network, Program

__all__ = ["show"]

_RANKS = 8
_SIZE = "1MB"
_RATE = "10gbit"


def show(options: Request) -> None:
    """Show a plan, programs or a recorded run; several sources must all be programs.

    Raises:
        WirewiseError: A source cannot be read, or does not fit the others.
    """
    first, *others = options.sources
    kind = kind_of(first)
    if kind == "page" or options.svg is not None:
        return _show_pictures(options, kind)
    if not others and kind == "trace":
        return _show_trace(first, options)
    if not others and kind == "msccl":
        return msccl.show(first, options.json, options.html)
    if not others and kind == "mscclpp":
        return mscclpp_plans.show(first, options.json, options.html)
    plan = plans.load(first) if kind == "plan" else None
    if plan is not None and not others and (options.html is None or not isinstance(plan, CollectivePlan)):
        return _show_plan(plan, options)
    _show_programs(options)


def _show_pictures(options: Request, kind: str) -> None:
    from wirewise.report.pictures import write_pictures

    page = options.sources[0]
    if kind != "page" or len(options.sources) > 1:
        raise InputError(
            f"got --svg with {', '.join(options.sources)}; expected one page that a command wrote with --html"
        )
    if options.svg is None:
        raise InputError(
            f"{page} is a page; open it in a browser, or write its charts as files: --svg FOLDER"
        )
    files = write_pictures(page, options.svg)
    write_out(options.json, {"pictures": [str(file) for file in files]}, *(str(file) for file in files))


def _show_plan(plan: Plan, options: Request) -> None:
    headline = plan.summary().splitlines()[0]
    if options.html is not None:
        from wirewise.report import plan_html, shell

        plan_section = shell.section("Plan", "", plan_html(plan))
        sections = [shell.head("wirewise show", headline), *_pictures(plan, options), plan_section]
        shell.write_page(shell.page(headline, sections), options.html)
    write_json(options.json, decode_json(plan.to_json()))
    if options.json != "-":
        print_table(*plan.table(), title=headline)
        for line in _page(options):
            print_text(line)


def _pictures(plan: Plan, options: Request) -> Iterator[str]:
    on = options.topology
    if isinstance(plan, ReshardPlan):
        from wirewise.cost.links import Links
        from wirewise.report.reshard_picture import drawn_links, reshard_section

        if on is not None:
            found = open_topology(on)
            plan.check(found)
            yield reshard_section(plan, Links.of(found), introduction=f"On {on}.")
        else:
            about = "All interfaces are as fast as those that the bound counts with; --topology names others."
            yield reshard_section(plan, drawn_links(plan), introduction=about)
    if isinstance(plan, StagePlan):
        from wirewise.report.shell import notes
        from wirewise.report.timetable_picture import timetable_section

        yield timetable_section(plan)
        yield notes("Why these stages", plan.notes)
    if isinstance(plan, ParallelPlan):
        from wirewise.cli.plan_parallel import graph_beside
        from wirewise.cost.links import Links
        from wirewise.report.parallel_picture import parallel_sections
        from wirewise.trace import read_operator_graph

        file = graph_beside(Path(options.sources[0]))
        graph = read_operator_graph(file) if file.is_file() else None
        yield from parallel_sections(plan, graph, None if on is None else Links.of(open_topology(on)))
    if isinstance(plan, RecoveryPlan):
        from wirewise.report.recovery_picture import recovery_sections

        yield from recovery_sections(plan)
    if isinstance(plan, JobPlan):
        from wirewise.report.jobs_picture import jobs_section

        yield jobs_section(plan)
    if isinstance(plan, DeploymentPlan):
        from wirewise.report.deployment_picture import deployment_section

        yield deployment_section(plan)


def _show_trace(source: str, options: Request) -> None:
    from wirewise.report.collective_view import recorded_html, recorded_rows
    from wirewise.report.shell import write_page
    from wirewise.trace import load

    trace = load([source])
    if options.html is not None:
        write_page(recorded_html(trace, Path(source).name, options.step), options.html)
    titles, rows = recorded_rows(trace, options.step)
    none = (
        f"Note: {source} has no messages between ranks, only collectives; what travels inside those is not recorded, "
        "the page (--html) shows when ranks were in them."
    )
    record = {"messages": [dict(zip(titles, row, strict=True)) for row in rows]}
    write_out(options.json, record, (titles, rows) if rows else none, *_page(options))


def _show_programs(options: Request) -> None:
    from wirewise.report.collective_analysis import analyse, analysis_object
    from wirewise.report.collective_view import collective_html, cost_rows, sentence, titles
    from wirewise.report.shell import write_page

    found = [program for source in options.sources for program in _programs(source, options)]
    network, size_bytes = _network(found, options), _size_bytes(options)
    found = _joined(found, network, options)
    analysed = [analyse(program, network, size_bytes) for program in found]
    named = titles(analysed)
    if options.html is not None:
        write_page(collective_html(analysed), options.html)
    record = {"programs": [analysis_object(one) for one in analysed]}
    write_out(options.json, record, sentence(analysed, named), cost_rows(analysed, named), *_page(options))


def _joined(found: list[Program], network: Network, options: Request) -> list[Program]:
    """Programs without those that nobody named and that need routes which the network does not have."""
    if len(options.sources) > 1 or ":" in options.sources[0] or not is_name(options.sources[0]):
        return found
    kept = [one for one in found if all(network.route(t.source, t.target) for t in one.transfers)]
    left_out = [one.name for one in found if one not in kept]
    if left_out and kept:
        note(
            f"Note: {network.name} has no route for {', '.join(left_out)}; a planner makes programs for it "
            "(wirewise plan collective)."
        )
    return kept or found


def _page(options: Request) -> list[str]:
    return [f"Page: {options.html}"] if options.html is not None else []


def _programs(source: str, options: Request) -> list[Program]:
    kind = kind_of(source)
    if kind == "name":
        return _built(source, options)
    if kind == "program":
        program = collective.load(source)
        collective.check(program)
        return [program]
    what = {"trace": "a recorded run", "msccl": "an MSCCL file", "mscclpp": "a plan of MSCCL++"}.get(kind)
    if what is not None:
        raise InputError(
            f"{source} is {what}; show it alone, or name only programs, plans of collectives and "
            "algorithms such as all_reduce:ring:8"
        )
    plan = plans.load(source)
    if isinstance(plan, CollectivePlan):
        return [plan.program]
    raise InputError(f"{source} is a plan of {plan.family}; expected plans of collectives, or show it alone")


def _built(source: str, request: Request) -> list[Program]:
    """The algorithm of a name; without one, all that work for this many ranks."""
    kind, *rest = source.split(":")
    name = cast("collective.Collective", kind.replace("-", "_"))
    ranks = _ranks(source, rest[1:], request)
    options: dict[str, Any] = {"root": request.root, "segments": request.segments, "hosts": _hosts(request)}
    if rest and rest[0]:
        return [build(name, rest[0], ranks, **options)]
    found, refused = [], None
    for algorithm in algorithms(name):
        try:
            found.append(build(name, algorithm, ranks, **options))
        except ProgramError as error:
            refused = error
    if not found and refused is not None:
        raise refused
    return found


def _ranks(source: str, words: Sequence[str], options: Request) -> int:
    if not words:
        if options.ranks is None and options.topology is not None:
            return len(open_topology(options.topology).ranks)
        return options.ranks or _RANKS
    if len(words) > 1 or not words[0].isdecimal():
        raise InputError(
            f"{source!r} is not understood; expected COLLECTIVE, COLLECTIVE:ALGORITHM or COLLECTIVE:ALGORITHM:RANKS, "
            "such as all_reduce:ring:8"
        )
    return int(words[0])


def _hosts(options: Request) -> list[list[int]] | None:
    """Ranks of each host of the topology, for hierarchical algorithms; None if each rank is a host, or one has all."""
    devices = () if options.topology is None else open_topology(options.topology).devices
    hosts: dict[str, list[int]] = {}
    for rank, device in enumerate(devices):
        hosts.setdefault(device.host, []).append(rank)
    return list(hosts.values()) if len(hosts) > 1 else None


def _network(found: Sequence[Program], options: Request) -> Network:
    """The topology that was named; else that of the first plan, if it is a preset; else equal hosts."""
    if options.topology is not None:
        return _called(open_topology(options.topology), options.topology)
    if (plan := _first_plan(options)) is not None:
        try:
            return collective.network(topology.preset(plan.topology))
        except TopologyError:
            note(
                f"Note: topology {plan.topology!r} is no preset; shown on equal hosts, name its file with --topology."
            )
    usual = f"lab-{found[0].ranks}@{_RATE}"
    return _called(topology.preset(usual), usual)


def _called(found: topology.Topology, source: str) -> Network:
    """The network, by the name that it was asked for where that tells the rate."""
    name = source if "@" in source and not Path(source).exists() else found.name
    return collective.network(msgspec.structs.replace(found, name=name))


def _size_bytes(options: Request) -> int:
    """The size that was named; else that of the first plan."""
    plan = _first_plan(options) if options.size is None else None
    return plan.size_bytes if plan is not None else parse_size(options.size or _SIZE)


def _first_plan(options: Request) -> CollectivePlan | None:
    found = (plans.load(source) for source in options.sources if kind_of(source) == "plan")
    return next((plan for plan in found if isinstance(plan, CollectivePlan)), None)
