"""`wirewise profile stages`: measure a model module by module, for `wirewise plan pipeline`."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from wirewise import options as opt
from wirewise.cli.options import with_options
from wirewise.cli.output import JsonOption, write_out
from wirewise.errors import InputError
from wirewise.report.figures import seconds
from wirewise.trace import StageTrace, write_stage_trace
from wirewise.units import format_size

__all__ = ["StageProfileOptions", "measure_stages", "names_code", "stages", "user_function"]


class StageProfileOptions(opt.Options, frozen=True, kw_only=True):
    """Options for measuring modules."""

    sizes: Annotated[tuple[opt.Count, ...], opt.about("Microbatch sizes to measure, such as 1,2,4.")] = (1,)
    repeats: Annotated[opt.Count, opt.about("Repetitions, of which the median counts.")] = 5


@with_options
def stages(
    model: Annotated[
        str,
        typer.Argument(
            metavar="FILE.py:NAME",
            help="Function that returns a model, or its modules in order, and an input; a third value names sources of "
            "modules (skips).",
        ),
    ],
    options: StageProfileOptions,
    out: Annotated[Path, typer.Option("--out", "-o", help="Output file.")],
    json: JsonOption = None,
) -> None:
    """Measure each module of a model on this machine: forward and backward seconds, saved and output bytes."""
    found = measure_stages(model, options.sizes, options.repeats)
    write_stage_trace(found, out)
    rows = [
        [
            module.name,
            seconds(module.forward_s[0]),
            seconds(module.backward_s[0]),
            format_size(module.output_bytes),
            format_size(module.saved_bytes),
            format_size(module.parameter_bytes),
        ]
        for module in found.modules
    ]
    titles = ["module", "forward", "backward", "output a sample", "kept a sample", "parameters"]
    said = f"{len(found.modules)} modules on {found.device}, microbatches of {options.sizes[0]} shown: {out}."
    write_out(json, msgspec.to_builtins(found), said, (titles, rows))


def names_code(source: str) -> bool:
    """Whether the source has the form FILE.py:NAME."""
    return Path(source.rpartition(":")[0]).suffix == ".py"


def measure_stages(source: str, sizes: Sequence[int] | None = (1,), repeats: int = 5) -> StageTrace:
    """Measure the modules of a function's model; sizes default to 1, 2, 4, ... up to the input's samples.

    Raises:
        InputError: The file or function does not exist, raises an error, or does not return a model and its input.
    """
    from torch import Tensor

    from wirewise.profile.stages import stage_trace
    from wirewise.runtime.pipeline import LayerGraph

    file, _, name = source.rpartition(":")
    made = user_function(file, name)()
    if not isinstance(made, tuple) or len(made) not in (2, 3):
        raise InputError(
            f"{source} returns a {type(made).__name__}; expected a model or its modules, and an input; or modules, an "
            "input and sources by module"
        )
    tensors = tuple(made[1]) if isinstance(made[1], tuple | list) else (made[1],)
    if not tensors or not all(isinstance(one, Tensor) and one.dim() for one in tensors):
        got = ", ".join(type(one).__name__ for one in tensors) or "nothing"
        raise InputError(
            f"{source} returns {got} as the input; expected a tensor of samples, or a tuple of them"
        )
    # Whoever gives several tensors gives targets too.
    layers = LayerGraph(made[0], made[2] if len(made) == 3 else None, several=len(tensors) > 1)
    if len(tensors) != len(layers.inputs):
        raise InputError(
            f"{source} returns {len(tensors)} tensors as the input, and the model takes {len(layers.inputs)}: "
            f"{', '.join(layers.inputs)}; expected one for each"
        )
    if sizes is None:
        sizes = [2**k for k in range(min(map(len, tensors)).bit_length())]
    batch = dict(zip(layers.inputs, tensors, strict=True))
    return stage_trace(
        layers.modules, batch, sizes=sizes, sources=layers.sources, repeats=repeats, model=name
    )


def user_function(file: str, name: str) -> Callable[..., Any]:
    """Load a function from a Python file, by running the file.

    Raises:
        InputError: The file or function does not exist, or the file raises an error.
    """
    if not Path(file).is_file():
        raise InputError(f"there is no file {file!r}; expected FILE.py:NAME with a function NAME in it")
    spec = importlib.util.spec_from_file_location("_wirewise_model", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise InputError(f"{file} cannot be run: {type(error).__name__}: {error}") from error
    function = getattr(module, name, None)
    if not callable(function):
        raise InputError(f"{file} has no function {name!r}; expected one that returns a model and an input")
    found: Callable[..., Any] = function
    return found
