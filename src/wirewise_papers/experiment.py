"""Experiments: description of a published system, and its command."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import msgspec

from wirewise.cli.options import GivenOptions, on_hosts, with_options
from wirewise.cli.output import (
    FolderOption,
    JsonOption,
    print_comparison,
    print_text,
    run_folder,
    save_result,
    write_json,
)
from wirewise.options import Options
from wirewise.results import Comparison

__all__ = ["Experiment", "Log"]

Log = Callable[[str], None]
"""Function called with progress messages."""
J = TypeVar("J", bound=Options)
R = TypeVar("R", bound=msgspec.Struct)


class Experiment(Generic[J, R]):
    """A command of `wirewise run`, registered as an entry point of the group `wirewise.experiments`.

    The docstring of a subclass is the help of its command. Its module is imported to list the commands, so it imports
    torch inside methods only.
    """

    name: ClassVar[str]
    """Name of the command."""
    options: ClassVar[type[Options]]
    """Options of the command."""
    on_hosts: ClassVar[bool] = True
    """Whether the options name a network of hosts, which is resolved in a Slurm allocation."""

    def prepare(self, cli_options: GivenOptions[Any], log: Log) -> J:
        """Make the job from the options. Defaults to their record.

        Keyword-only parameters of a subclass are further options of the command.

        Raises:
            InputError: The options contradict each other.
        """
        job: J = cli_options.record()
        return job

    def run(self, job: J, folder: Path, log: Log) -> R:
        """Run the job in its own folder."""
        raise NotImplementedError

    def comparison(self, result: R) -> Comparison:
        """Compare the variants, for display in terminals and pages."""
        raise NotImplementedError

    def sections(self, job: J, result: R) -> Iterable[str]:
        """HTML sections after the comparison on the page."""
        return ()

    def page(self, job: J, result: R) -> str:
        """Render the result as one HTML file. Defaults to the comparison and the sections."""
        from wirewise.report.comparison_page import comparison_html

        return comparison_html(self.comparison(result), self.name, self.sections(job, result))

    def plan_file(self, folder: Path, result: R) -> Path | None:
        """File of the recommended plan. None if the run writes no plan."""
        return None

    def execute(self, job: J, out: Path | None, json: str | None) -> None:
        """Run a job in a folder; write result, page and JSON, and print the comparison.

        Args:
            job: Job to run.
            out: Folder of the run. Defaults to one of its own.
            json: Target of the JSON object. None if it is not written.
        """
        with run_folder(out, self.name) as folder:
            result = self.run(job, folder, _log(json))
            report = save_result(folder, result, self.page(job, result))
            plan = self.plan_file(folder, result)
        write_json(json, msgspec.to_builtins(result))
        if json != "-":
            print_comparison(self.comparison(result))
            print_text(f"Report: {report}" if plan is None else f"Plan: {plan}, report: {report}")

    def command(self) -> Callable[..., None]:
        """Build the command: options, folder, JSON."""

        def command(
            cli_options: GivenOptions[Any], out: Path | None, json: str | None, **further: Any
        ) -> None:
            job = self.prepare(on_hosts(cli_options) if self.on_hosts else cli_options, _log(json), **further)
            self.execute(job, out, json)

        command.__doc__ = self.__doc__
        command.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [
                *_further(self.prepare),
                _parameter("cli_options", GivenOptions[self.options]),  # type: ignore[name-defined]
                _parameter("out", FolderOption, None),
                _parameter("json", JsonOption, None),
            ]
        )
        return with_options(command)


def _log(json: str | None) -> Log:
    """Progress goes to stderr where stdout is for the JSON."""
    return lambda text: print_text(text, err=json == "-")


def _further(prepare: Any) -> Iterator[inspect.Parameter]:
    """Options of the command that only a subclass has."""
    for one in inspect.signature(prepare).parameters.values():
        if one.kind is one.KEYWORD_ONLY:
            # Other annotations name records that the module imports for type checkers only.
            kind = eval(one.annotation, prepare.__func__.__globals__)
            yield _parameter(one.name, kind, one.default)


def _parameter(name: str, kind: Any, default: Any = inspect.Parameter.empty) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=kind, default=default)
