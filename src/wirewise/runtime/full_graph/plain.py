"""Conversion of state to and from plain data: dictionaries, numbers, strings and tensors, storable without code."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
import torch

from wirewise.cost import CodecCost, ExchangeCosts, LinkCost, LinkEstimator, Links, PairCosts, PairEstimator
from wirewise.errors import InputError
from wirewise.planners.bitwidth import AutoDecision

__all__ = ["from_plain", "to_plain"]

_RECORDS: dict[str, type] = {
    kind.__name__: kind
    for kind in (
        AutoDecision,
        CodecCost,
        ExchangeCosts,
        LinkCost,
        Links,
        LinkEstimator,
        PairEstimator,
        PairCosts,
    )
}
"""Nothing else is ever made of what a file says."""
_ARRAY, _RECORD, _FIELDS = "array of numpy", "record of wirewise", "fields"
_KEEP = (bool, int, float, str, type(None), torch.Tensor)


def to_plain(value: Any) -> Any:
    """Convert arrays to tensors and records to dictionaries, both marked for `from_plain`.

    Raises:
        TypeError: A value has an unsupported type.
    """
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, _KEEP):
        return value
    if isinstance(value, np.ndarray):
        return {_ARRAY: torch.from_numpy(np.array(value))}
    if isinstance(value, Mapping):
        return {to_plain(key): to_plain(own) for key, own in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(to_plain, value))
    if _RECORDS.get(type(value).__name__) is not type(value):
        raise TypeError(
            f"a checkpoint cannot hold a {type(value).__name__}; add it to the records of {__name__}"
        )
    return {_RECORD: type(value).__name__, _FIELDS: to_plain(_fields(value))}


def from_plain(value: Any) -> Any:
    """Restore the value passed to `to_plain`.

    Raises:
        InputError: A record is of an unknown kind, or has other fields than here.
    """
    if isinstance(value, list | tuple):
        return type(value)(map(from_plain, value))
    if not isinstance(value, dict):
        return value
    if value.keys() == {_ARRAY}:
        return value[_ARRAY].numpy()
    if value.keys() == {_RECORD, _FIELDS}:
        return _record(value[_RECORD], from_plain(value[_FIELDS]))
    return {from_plain(key): from_plain(own) for key, own in value.items()}


def _fields(record: Any) -> dict[str, Any]:
    if isinstance(record, msgspec.Struct):
        return msgspec.structs.asdict(record)
    if dataclasses.is_dataclass(record):
        return {field.name: getattr(record, field.name) for field in dataclasses.fields(record)}
    return vars(record)


def _record(name: str, fields: dict[str, Any]) -> Any:
    kind = _RECORDS.get(name)
    if kind is None:
        raise InputError(f"it holds a record {name!r}; expected one of {', '.join(_RECORDS)}")
    if dataclasses.is_dataclass(kind) or issubclass(kind, msgspec.Struct):
        try:
            return kind(**fields)
        except TypeError as error:
            raise InputError(f"its record {name} does not fit this version of wirewise: {error}") from error
    made = kind.__new__(kind)
    vars(made).update(fields)
    return made
