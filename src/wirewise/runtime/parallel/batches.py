"""Batch as input of a captured step: its tensors in capture order, regardless of the order of a dict."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch.utils import _pytree as pytree

from wirewise.errors import InputError

__all__ = ["batch_tensors"]


def batch_tensors(
    structure: pytree.TreeSpec | None, args: Sequence[Any], named: Mapping[str, Any]
) -> list[Any]:
    """Match the tensors of a batch with those of the captured one, by position and name.

    Args:
        structure: Structure of the captured batch. Defaults to positional tensors.
        args: Positional arguments of a call: those of a captured tuple, or the captured batch itself.
        named: Keyword arguments: those of a captured dict.

    Raises:
        InputError: Names or positions were not captured, or are missing.
    """
    if structure is None:
        if named:
            raise InputError(
                f"got {', '.join(named)} by name, and the step was made from a graph, which has no names; expected "
                "tensors in the order of the captured step's inputs"
            )
        return list(args)
    example = pytree.tree_unflatten(range(structure.num_leaves), structure)
    if named and args:
        raise InputError(
            f"got {len(args)} arguments and {', '.join(named)} by name; expected the captured batch in one way: "
            f"{_told(example)}"
        )
    batch: Any = dict(named) if named else _batch_of(example, args)
    return list(_leaves(example, batch, ""))


def _batch_of(example: Any, args: Sequence[Any]) -> Any:
    if isinstance(example, tuple | list):
        alone = len(args) == 1 and isinstance(args[0], tuple | list) and len(args[0]) == len(example)
        return args[0] if alone and len(example) > 1 else args
    if len(args) != 1:
        raise InputError(f"got {len(args)} arguments; expected the captured batch: {_told(example)}")
    return args[0]


def _leaves(example: Any, given: Any, path: str) -> Iterator[Any]:
    """Entries of a batch in the order of the captured one."""
    where = path or "the batch"
    if isinstance(example, Mapping):
        if not isinstance(given, Mapping) or set(given) != set(example):
            got = sorted(map(str, given)) if isinstance(given, Mapping) else type(given).__name__
            raise InputError(
                f"{where} is {got}; expected the names of the captured batch: {', '.join(map(str, example))}"
            )
        for name, one in example.items():
            yield from _leaves(one, given[name], f"{path}[{name!r}]")
    elif isinstance(example, tuple | list):
        if not isinstance(given, tuple | list) or len(given) != len(example):
            got = f"{len(given)} entries" if isinstance(given, tuple | list) else type(given).__name__
            raise InputError(
                f"{where} is {got}; expected {len(example)} entries as captured: {_told(example)}"
            )
        for place, (one, other) in enumerate(zip(example, given, strict=True)):
            yield from _leaves(one, other, f"{path}[{place}]")
    else:
        yield given


def _told(example: Any) -> str:
    if isinstance(example, Mapping):
        return f"a dict of {', '.join(map(str, example))}, or these by name"
    if isinstance(example, tuple | list):
        return f"{len(example)} arguments in their order"
    return "one tensor"
