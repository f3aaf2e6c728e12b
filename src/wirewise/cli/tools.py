"""Commands that read files, as tools for other programs: argument schemas, and calls with limits.

A schema is derived from the options of its command; each call runs in a process with time and memory limits.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import json
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin

from typer.models import ArgumentInfo

from wirewise.cli.profile_stages import names_code
from wirewise.errors import InputError
from wirewise.hosts import OwnedFolder
from wirewise.hosts.processes import signal_group

__all__ = ["Bounds", "Tool", "run_tool", "tools"]

COMMANDS = ("trace show", "sim", "compare", "advise", "check", "topo list", "topo show")
"""Commands that are tools, besides those of `wirewise plan`."""
_NO_ARGUMENTS = ("json", "command")
"""Parameters of commands that their tools lack: where JSON goes, and a command to run."""
_REQUIRED = {"advise": ("trace",)}
"""Arguments that a tool needs and its command does not."""
_TYPES: Mapping[Any, str] = {bool: "boolean", int: "integer", float: "number"}
_MOST_TEXT = 60_000
"""Characters of text, and of JSON, that an answer holds."""


class Bounds(NamedTuple):
    """Folder of the tools, and time and memory limits of a call."""

    folder: Path
    seconds: float
    memory_bytes: int


class Argument(NamedTuple):
    """Argument of a tool: an option of the command, or a positional argument."""

    option: str
    """Option of the command, such as --what-if or --keep/--no-keep. Empty for a positional argument."""
    schema: dict[str, Any]
    required: bool


class Tool(NamedTuple):
    """Command offered as a tool."""

    words: tuple[str, ...]
    help: str
    arguments: dict[str, Argument]

    @property
    def schema(self) -> dict[str, Any]:
        """JSON schema of the arguments."""
        return {
            "type": "object",
            "properties": {name: one.schema for name, one in self.arguments.items()},
            "required": [name for name, one in self.arguments.items() if one.required],
            "additionalProperties": False,
        }


def tools() -> dict[str, Tool]:
    """All tools by name, such as trace_show."""
    planned = (f"plan {name}" for name in _callbacks("plan"))
    found = {}
    for command in (*COMMANDS, *planned):
        *group, name = command.split()
        callback = _callbacks(*group)[name]
        arguments = dict(_arguments(callback, _REQUIRED.get(command, ())))
        found[command.replace(" ", "_")] = Tool((*group, name), inspect.getdoc(callback) or "", arguments)
    return found


def _callbacks(group: str = "main") -> dict[str, Callable[..., None]]:
    """Functions of the commands of a module of `wirewise.cli`, by name."""
    commands = importlib.import_module(f"wirewise.cli.{group}").app.registered_commands
    return {one.name or one.callback.__name__: one.callback for one in commands if not one.hidden}


def _arguments(callback: Callable[..., None], required: tuple[str, ...]) -> Iterator[tuple[str, Argument]]:
    for one in inspect.signature(callback, eval_str=True).parameters.values():
        if get_origin(one.annotation) is not Annotated or one.name in _NO_ARGUMENTS:
            continue
        kind, info = get_args(one.annotation)
        schema = {**_schema(kind, info.metavar), "description": info.help or ""}
        if isinstance(one.default, bool | int | float | str):
            schema["default"] = one.default
        names = [name for name in info.param_decls or () if name.startswith("--")]
        option = (names or [f"--{one.name.replace('_', '-')}"])[0]
        needs = one.name in required or one.default is one.empty
        yield one.name, Argument("" if isinstance(info, ArgumentInfo) else option, schema, needs)


def _schema(kind: Any, metavar: str | None) -> dict[str, Any]:
    kinds = [one for one in get_args(kind) if one is not NoneType] if NoneType in get_args(kind) else [kind]
    kind = kinds[0]
    if get_origin(kind) is Literal:
        return {"enum": list(get_args(kind))}
    # An option of several values has all of them in one text, by comma.
    if get_origin(kind) is list and metavar != "<str>":
        return {"type": "array", "items": {"type": _TYPES.get(get_args(kind)[0], "string")}}
    return {"type": _TYPES.get(kind, "string")}


def _line(tool: Tool, given: Mapping[str, Any], folder: Path) -> list[str]:
    """Words of the command line.

    Raises:
        InputError: An argument that is unknown or missing, a path outside of the folder, or code to run.
    """
    # Clients send null for an argument that they leave out.
    given = {name: value for name, value in given.items() if value is not None}
    if unknown := sorted(given.keys() - tool.arguments.keys()):
        raise InputError(f"got the argument {unknown[0]!r}; expected some of: {', '.join(tool.arguments)}")
    if missing := [name for name, one in tool.arguments.items() if one.required and name not in given]:
        raise InputError(
            f"the argument {missing[0]!r} is missing: {tool.arguments[missing[0]].schema['description']}"
        )
    options, words = [], []
    for name, value in given.items():
        option = tool.arguments[name].option
        for entry in value if isinstance(value, list) else [value]:
            _check_inside(name, str(entry), folder)
            if isinstance(entry, bool):
                yes, _, no = option.partition("/")
                options += [yes] if entry else [no] if no else []
            elif option:
                options.append(f"{option}={entry}")
            else:
                words.append(str(entry))
    return [*tool.words, *options, "--", *words] if words else [*tool.words, *options]


def _check_inside(name: str, text: str, folder: Path) -> None:
    if "\0" in text:
        raise InputError(f"{name} is {text!r}; expected text without NUL")
    if names_code(text):
        raise InputError(
            f"{name} is {text!r}, which is code; tools run none: give a file that `wirewise profile` wrote"
        )
    for part in (text, *re.split(r"[=,:\s]", text)):
        if not (folder / part).resolve().is_relative_to(folder):
            raise InputError(
                f"{name} names {part!r}, which is outside of {folder}; expected a path inside of it"
            )


def _own_folder() -> OwnedFolder:
    return OwnedFolder(Path(tempfile.gettempdir()), "wirewise-tools-")


async def run_tool(
    tool: Tool, arguments: Mapping[str, Any], bounds: Bounds
) -> tuple[str, dict[str, Any] | None]:
    """Run a tool; returns the command's output, and its JSON object if that is short.

    Raises:
        InputError: The arguments are invalid, or the command refused, failed, timed out or ran out of memory.
    """
    line = _line(tool, arguments, bounds.folder)

    def bound() -> None:
        resource.setrlimit(resource.RLIMIT_DATA, (bounds.memory_bytes, bounds.memory_bytes))

    with _own_folder() as own, (own.path / "said").open("w+b") as said:
        file = own.path / "found.json"
        line.insert(len(tool.words), f"--json={file}")
        running = subprocess.Popen(
            [sys.executable, "-m", "wirewise", *line],
            cwd=bounds.folder, stdin=subprocess.DEVNULL, stdout=said, stderr=said,
            env={**os.environ, "COLUMNS": "120"}, start_new_session=True, preexec_fn=bound,
        )  # fmt: skip
        try:
            code = await asyncio.to_thread(running.wait, bounds.seconds)
        except subprocess.TimeoutExpired:
            raise InputError(
                f"the call was ended after {bounds.seconds:g} s; ask for less, or start the server with "
                "a higher --seconds"
            ) from None
        finally:
            signal_group(running, signal.SIGKILL)
            running.wait()
        said.seek(0)
        text = said.read(4 * _MOST_TEXT).decode(errors="replace").strip()
        if len(text) > _MOST_TEXT:
            text = f"{text[:_MOST_TEXT]}\n(cut after {_MOST_TEXT:,} characters; ask for less)"
        # Commands that found a fault, or a run that got slower, end with 1 and have an answer.
        if code not in (0, 1) or not file.exists():
            raise InputError(
                text[-2000:] or f"the command ended with {code}, as it does without enough memory"
            )
        found = file.read_bytes()
        if len(found) > _MOST_TEXT:
            return (
                f"{text}\n(its JSON of {len(found):,} bytes is left out, as it is above {_MOST_TEXT:,})",
                None,
            )
        return text, json.loads(found)
