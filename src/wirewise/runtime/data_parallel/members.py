"""Members of gradient groups: parameters, and pieces of them if a plan splits some."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from wirewise.errors import InputError
from wirewise.plans.splits import pieces

__all__ = ["Members", "ParameterSlice"]


class ParameterSlice(NamedTuple):
    """Parameter in a group, or a piece of one."""

    place: int
    """Index of the parameter."""
    size: int
    """Number of elements."""
    begin: int = 0
    """First element of the slice in the parameter."""
    number: int = 0
    """Index of the piece."""
    shape: tuple[int, ...] | None = None
    """Shape of a whole parameter, if it is known."""


class Members:
    """Members by name.

    Args:
        sizes: Number of elements of each parameter; the order numbers them.
        shapes: Shapes of parameters, if known.
    """

    def __init__(self, sizes: Mapping[str, int], shapes: Mapping[str, Sequence[int]]) -> None:
        self.sizes: dict[str, int] = {}
        self.splits: dict[str, int] = {}
        """Elements of a piece of each parameter that is cut."""
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._places: dict[str, int] = {}
        self._pieces: dict[str, ParameterSlice] = {}
        self.add(sizes, shapes)

    def add(self, sizes: Mapping[str, int], shapes: Mapping[str, Sequence[int]]) -> None:
        """Add new parameters, with the next numbers."""
        self._shapes |= {name: tuple(shape) for name, shape in shapes.items()}
        for name, size in sizes.items():
            if self.sizes.setdefault(name, size) != size:
                raise InputError(
                    f"parameter {name!r} has {size} elements, the pool {self.sizes[name]}; use that of the same model"
                )
            self._places.setdefault(name, len(self._places))

    def __getitem__(self, name: str) -> ParameterSlice:
        if name in self._pieces:
            return self._pieces[name]
        return ParameterSlice(self._places[name], self.sizes[name], shape=self._shapes.get(name))

    def of(self, parameter: str) -> list[str]:
        """Names of a parameter's pieces in order, or its own name if it is whole."""
        size = self.splits.get(parameter)
        return [parameter] if size is None else list(pieces(parameter, self.sizes[parameter], size))

    def cut(self, parameter: str, size: int | None) -> None:
        """Split a parameter into pieces of `size` elements; None makes it whole."""
        for piece in self.of(parameter):
            self._pieces.pop(piece, None)
        self.splits.pop(parameter, None)
        if size is not None:
            self.splits[parameter] = size
            spans = pieces(parameter, self.sizes[parameter], size).items()
            for number, (piece, (begin, end)) in enumerate(spans):
                self._pieces[piece] = ParameterSlice(self._places[parameter], end - begin, begin, number)
