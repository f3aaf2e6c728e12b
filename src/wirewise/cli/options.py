"""Command options made from records of `wirewise.options`: names, defaults, ranges and help are written once."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Annotated, Any, Generic, TypeVar, get_args, get_origin

import msgspec
import typer

from wirewise.errors import InputError
from wirewise.hosts.allocation import adopt_srun_rank, current_allocation
from wirewise.options import Field, Options, fields_of

__all__ = ["GivenOptions", "need_ranks", "on_hosts", "refuse", "with_options"]

R = TypeVar("R", bound=Options)


class GivenOptions(Generic[R]):
    """Options given on the command line, for a record that is built later."""

    def __init__(self, kind: type[R], values: dict[str, Any], named: frozenset[str]) -> None:
        """Keep what was read.

        Args:
            kind: Record that the options are for.
            values: Each within the range of its field, by field.
            named: Fields whose options the user wrote; the others have their defaults.
        """
        self.kind, self.values, self.named = kind, values, named

    def record(self, **others: Any) -> R:
        """Build the record, with the fields that are not options.

        Raises:
            InputError: Options contradict each other.
        """
        return self.kind(**self.values, **others)


def refuse(options: Options, names: Iterable[str], reason: str) -> None:
    """Raise InputError if one of these options was given.

    Args:
        options: Record in which options that were not given are None.
        names: Fields of the record.
        reason: Message text after the option's name.

    Raises:
        InputError: One of the options was given; the message names the first one and contains the reason.
    """
    fields = {field.name: field for field in fields_of(type(options))}
    for name in names:
        if getattr(options, name) is not None:
            raise InputError(f"{fields[name].option} {reason}")


def on_hosts(cli_options: GivenOptions[R]) -> GivenOptions[R]:
    """Resolve the options of a job with a network inside a Slurm allocation.

    The job gets all hosts of the allocation and one rank per Slurm task, unless options set other numbers; there is
    one emulated speed per host.

    Raises:
        InputError: The network is slurm without an allocation or with one of a single host, or links were given for
            it.
    """
    asked = cli_options.values["network"]
    if asked != "slurm" and (asked != "auto" or current_allocation() is None):
        return cli_options
    # Needs more than help does.
    from wirewise.hosts.slurm import needed_allocation

    found = needed_allocation()
    if named := sorted({"link", "links"} & cli_options.named):
        raise InputError(
            f"--{named[0]} shapes the hosts of a lab, and this is an allocation of Slurm, whose links are as they are; "
            "leave it out, or say --network lab"
        )
    values = {**cli_options.values, "network": "slurm"}
    if "hosts" in values and ("hosts" not in cli_options.named or not values["hosts"]):
        most = values["workers"] if "workers" in cli_options.named else len(found.hosts)
        values["hosts"] = min(len(found.hosts), most)
    if "workers" in values and "workers" not in cli_options.named:
        values["workers"] = values.get("hosts", len(found.hosts)) * max(found.ranks // len(found.hosts), 1)
    if "speeds" in values and "speeds" not in cli_options.named:
        values["speeds"] = values["speeds"][: len(found.hosts)]
    return GivenOptions(cli_options.kind, values, cli_options.named)


def need_ranks(command: str) -> None:
    """Raise InputError if a command that all ranks run together was started alone.

    Raises:
        InputError: The command was started alone; the message contains the commands that start all ranks.
    """
    if not adopt_srun_rank():
        raise InputError(
            f"there are no ranks; start it as `wirewise lab run --topology h4 -- -m wirewise {command}`, by torchrun "
            f"on each host, or in an allocation of Slurm as `srun wirewise {command}`"
        )


def with_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of each record among its parameters, in place of the record.

    A parameter `job: Job` receives the record, `given: GivenOptions[Job]` only the options that were given. A field
    without a description is no option and keeps its default; a nested record contributes the options of its fields.
    """
    taken = inspect.signature(command, eval_str=True).parameters.values()
    records = {one.name: one.annotation for one in taken if _record_of(one.annotation) is not None}
    own = [one.replace(kind=one.KEYWORD_ONLY) for one in taken if one.name not in records]
    options: list[inspect.Parameter] = []
    for one in taken:
        kind = _record_of(one.annotation)
        options += [own.pop(0)] if kind is None else map(_parameter, _described(kind))

    def call(ctx: typer.Context, **values: Any) -> None:
        made: dict[str, Any] = {}
        for name, annotation in records.items():
            given = _given(_record_of(annotation), ctx, values)
            made[name] = given if get_origin(annotation) is GivenOptions else given.record()
        command(**made, **{one.name: values[one.name] for one in taken if one.name not in records})

    context = inspect.Parameter("ctx", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context)
    call.__name__, call.__doc__, call.__module__ = command.__name__, command.__doc__, command.__module__
    call.__signature__ = inspect.Signature([context, *options])  # type: ignore[attr-defined]
    call.__annotations__ = {one.name: one.annotation for one in [context, *options]}
    return call


def _record_of(annotation: Any) -> Any:
    """The record that a parameter is for; None if it is an option by itself."""
    kind = get_args(annotation)[0] if get_origin(annotation) is GivenOptions else annotation
    return kind if isinstance(kind, type) and issubclass(kind, Options) else None


def _described(record: type[Options]) -> list[Field]:
    """Fields that are options, those of records within the record among them."""
    found: list[Field] = []
    for field in fields_of(record):
        inner = _record_of(field.kind)
        found += _described(inner) if inner is not None else [field] if field.description else []
    return found


def _given(record: Any, ctx: typer.Context, values: dict[str, Any]) -> GivenOptions[Any]:
    read: dict[str, Any] = {}
    named: set[str] = set()
    for field in fields_of(record):
        if (inner := _record_of(field.kind)) is not None:
            of_inner = _given(inner, ctx, values)
            read[field.name] = of_inner.record()
            named |= of_inner.named
        elif field.description:
            text = _once(field, values[field.name])
            read[field.name] = value = _value(field, text)
            field.check(value, field.option.partition("/")[0], text)
            source = ctx.get_parameter_source(field.name)
            if source is not None and source.name != "DEFAULT":
                named.add(field.name)
    return GivenOptions(record, read, frozenset(named))


def _once(field: Field, cli_options: Any) -> Any:
    """The one text of an option that has all of its values in one.

    Raises:
        InputError: It was given several times.
    """
    if get_origin(field.kind) is list or not isinstance(cli_options, list):
        return cli_options
    if len(cli_options) > 1:
        raise InputError(
            f"{field.option} was given {len(cli_options)} times, as {' and '.join(cli_options)}; "
            "expected once, with all of it"
        )
    return cli_options[0] if cli_options else None if field.optional else ""


def _value(field: Field, text: Any) -> Any:
    """The value of a field from what typer read; texts of tuples have commas."""
    if "read" in field.extra and text is not None:
        return field.extra["read"](text)
    if get_origin(field.kind) is list:
        return list(text or [])
    if get_origin(field.kind) is not tuple or text is None:
        return text
    words = [word.strip() for word in text.split(",") if word.strip()]
    kind = _plain(get_args(field.kind)[0])
    try:
        return tuple(kind(word) for word in words)
    except ValueError as error:
        numbers = "whole numbers" if kind is int else "numbers"
        raise InputError(f"{field.option} is {text!r}; expected {numbers} by comma") from error


def _plain(kind: Any) -> Any:
    """Type of an entry: int, float, str or Path."""
    kind = get_args(kind)[0] if get_origin(kind) is Annotated else kind
    return kind if isinstance(kind, type) else str


def _parameter(field: Field) -> inspect.Parameter:
    """The parameter from which typer makes the option of a field."""
    kind: Any = _plain(get_args(field.kind)[0]) if field.several else _plain(field.kind)
    name, default, metavar = field.option, field.default, None
    if get_origin(field.kind) is list:
        kind, default = list[kind] | None, default or None
    elif "read" in field.extra or field.several:
        # As a list, so that one that is given twice does not lose its first values.
        kind, metavar = list[str], "<str>"
        if default is not None and default is not msgspec.NODEFAULT:
            default = [",".join(map(str, default))]
    if field.optional:
        kind = kind | None
    if kind is bool and default and "/" not in name:
        name = f"{name}/--no-{name.removeprefix('--')}"
    names = [name, field.extra["also"]] if "also" in field.extra else [name]
    return inspect.Parameter(
        field.name,
        inspect.Parameter.KEYWORD_ONLY,
        annotation=Annotated[kind, typer.Option(*names, help=_help(field), metavar=metavar)],
        default=inspect.Parameter.empty if default is msgspec.NODEFAULT else default,
    )


def _help(field: Field) -> str:
    """The description, and the range where the description does not say it."""
    if not field.range or (field.words and all(word in field.description for word in field.words)):
        return field.description
    return f"{field.description.removesuffix('.')}; {field.range}."
