"""Attributes of own nodes and edges, as tensors that refuse statistics over rows, which would differ between ranks.

A script that centres `job.data.x` by `x - x.mean(0)` runs without an error on each rank, but trains another model:
the mean is that of the rank's own rows. Operations that combine rows are therefore refused, and the error names the
alternative, `job.statistics`. Row-wise results remain such tensors; results of a model, and those with a gradient, do
not.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils import _pytree as pytree
from torch_geometric.data.data import BaseData

from wirewise.errors import InputError
from wirewise.integrations.pyg.detached import mixes_rows, tensors_of
from wirewise.runtime.full_graph import Transport

__all__ = ["InsideModel", "OwnRows", "RowStatistics", "plain_rows", "statistics_of"]

_LOCAL = set("any all is_nonzero item tolist numpy as_subclass allclose equal is_same_size".split())
"""Functions whose result says something of this rank alone by intention, such as whether a value is NaN."""
_FRESH = set("bernoulli bernoulli_ normal_ uniform_ zero_ fill_ random_".split())
"""Functions whose result says nothing of the rows, or of each alone."""
_MOVING = set(
    "t T mT H mH adjoint transpose permute movedim moveaxis swapaxes swapdims unsqueeze stack".split()
)
"""Functions after which rows may lie along another dimension than the first."""
_SUMMING = set(
    "index_add index_add_ index_reduce index_reduce_ scatter_add scatter_add_ scatter_reduce scatter_reduce_ "
    "segment_reduce batch_norm instance_norm svd qr linalg_svd linalg_qr svd_lowrank pca_lowrank linalg_pinv pinverse "
    "linalg_norm linalg_matrix_norm linalg_vector_norm nuclear_norm".split()
)
"""Further functions that take rows together."""
_REDUCING = set(
    "mean sum std var max min amax amin median nanmedian nanmean nansum prod argmax argmin logsumexp mode".split()
)
"""Functions whose second argument is the dimension that they reduce."""
_ROWS = set("select unbind __iter__".split())
"""Functions that give rows one by one, or columns."""
_REMAKING = {"requires_grad_", "requires_grad=", "data="}
"""Functions after which a tensor has other memory than the plain one, or a gradient."""
_PRODUCTS = set("matmul mm dot mv __matmul__ __rmatmul__".split())
"""Functions that sum over the last dimension of one tensor and the first of another."""


class _Thread(threading.local):
    """State of a thread, which may be a rank."""

    in_model = False


_thread = _Thread()


class InsideModel:
    """Context in which rows are ordinary tensors, while a distributed model runs, which has its own proof.

    Args:
        values: Arguments of the model; those that are `Data` hold ordinary tensors meanwhile.
    """

    def __init__(self, values: Iterable[Any]) -> None:
        self._swapped = [
            (store, key, value)
            for data in values
            if isinstance(data, BaseData)
            for store in data.stores
            for key, value in store.items()
            if type(value) is OwnRows
        ]

    def __enter__(self) -> None:
        self._before, _thread.in_model = _thread.in_model, True
        for store, key, value in self._swapped:
            store[key] = plain_rows(value)

    def __exit__(self, *_: object) -> None:
        _thread.in_model = self._before
        for store, key, value in self._swapped:
            # Unless the model has put something else there.
            if store.get(key) is value.plain:
                store[key] = value


class OwnRows(Tensor):
    """Rows of own nodes or their in-edges, or row-wise results of them."""

    plain: Tensor | None = None
    """Plain tensor with the same memory. None if it has to be made."""
    moved = False
    """Whether rows lie along a dimension other than the first."""

    @staticmethod
    def of(values: Tensor) -> OwnRows:
        """Mark the rows of a tensor, sharing its memory."""
        values = plain_rows(values)
        rows = values.as_subclass(OwnRows)
        rows.plain = values
        return rows

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Compute as always; refuse a result that takes rows together."""
        kwargs = kwargs or {}
        if _thread.in_model or any(kind is not cls and kind is not Tensor for kind in types):
            # Models are looked at as a whole; their outputs, and edges, have rules of their own.
            args, kwargs = pytree.tree_map(plain_rows, (args, kwargs))
            return func(*args, **kwargs)
        with torch._C.DisableTorchFunctionSubclass():
            result = func(*args, **kwargs)
            if _name(func) in _REMAKING and type(args[0]) is cls:
                args[0].plain = None
            if not isinstance(result, (Tensor, tuple, list)):
                return result
            given = [t for t in tensors_of((*args, *kwargs.values())) if type(t) is cls]
            _follow(func, args, kwargs, result, given)
        return result

    def __deepcopy__(self, memo: dict[int, Any]) -> OwnRows:
        """Copy the rows, marked too."""
        return OwnRows.of(copy.deepcopy(plain_rows(self), memo))

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickle a plain tensor."""
        return plain_rows(self).__reduce_ex__(protocol)


def plain_rows(value: Any) -> Any:
    """Convert marked rows to a plain tensor; anything else is returned unchanged."""
    if type(value) is not OwnRows:
        return value
    if value.plain is not None:
        return value.plain
    plain = value.as_subclass(Tensor)
    if not plain.requires_grad:
        value.plain = plain
    return plain


def _name(func: Any) -> str:
    name = getattr(func, "__name__", "")
    if name == "__set__":
        return f"{func.__self__.__name__}="
    return getattr(getattr(func, "__self__", None), "__name__", name) if name == "__get__" else name


def _follow(func: Any, args: Any, kwargs: Any, result: Any, given: Sequence[OwnRows]) -> None:
    """Refuse a result over rows; mark one that has rows."""
    name = _name(func)
    tensors = [t for t in tensors_of((result,)) if type(t) is Tensor and not t.requires_grad]
    if not given or not tensors or name in _LOCAL or name in _FRESH or _is_new(name):
        return
    if _is_of_one_row(name, args, kwargs, given[0]):
        return
    moved = _is_moved(name, args, kwargs, given[0])
    if name not in _MOVING and _takes_together(func, name, args, kwargs, result, given):
        raise InputError(
            f"{name.strip('_')}() takes rows of job.data together, and they are this rank's own: it would be another "
            "number on each rank. Expected statistics over the nodes of all ranks, s = job.statistics(job.data.x), "
            "then s.mean, s.std, s.maximum, ...; or what is computed of the whole graph before pyg.Job. For own rows "
            "alone use job.data.x.as_subclass(torch.Tensor)"
        )
    for tensor in tensors:
        if tensor.dim():
            tensor.__class__ = OwnRows
            tensor.moved = moved  # type: ignore[attr-defined]


def _is_new(name: str) -> bool:
    """Whether a function takes only the shape or the type of a tensor."""
    return name.endswith("_like") or name.startswith("new_")


def _is_of_one_row(name: str, args: Any, kwargs: Any, given: Tensor) -> bool:
    """Whether the result is a row, or rows one by one."""
    if name in _ROWS:
        return (
            int(kwargs.get("dim", args[1] if len(args) > 1 and isinstance(args[1], int) else 0)) % given.dim()
            == 0
        )
    if name != "__getitem__":
        return False
    first = args[1][0] if isinstance(args[1], tuple) and args[1] else args[1]
    if isinstance(first, Tensor):
        return not first.dim() and first.dtype != torch.bool
    return isinstance(first, int) and not isinstance(first, bool)


def _is_moved(name: str, args: Any, kwargs: Any, given: OwnRows) -> bool:
    if name not in _MOVING or given.dim() < 2 - (name in ("unsqueeze", "stack")):
        return given.moved
    if name in ("unsqueeze", "stack"):
        place = kwargs.get("dim", args[1] if len(args) > 1 else 0)
        return given.moved or int(place) % (given.dim() + 1) == 0
    # Twice is back for a matrix; for more dimensions any move counts.
    return given.dim() > 2 or not given.moved


def _takes_together(
    func: Any, name: str, args: Any, kwargs: Any, result: Any, given: Sequence[OwnRows]
) -> bool:
    if name in (
        "__getitem__",
        "index_select",
        "masked_select",
        "take",
        "view",
        "reshape",
        "squeeze",
        "flatten",
    ):
        return False
    if name in _SUMMING or (name == "normalize" and _dimension_of_normalize(args, kwargs, given[0]) == 0):
        return True
    if name in _PRODUCTS and given[0].dim() <= 2:
        behind = name == "__rmatmul__" or (len(args) > 1 and args[1] is given[0])
        if behind or given[0].moved:
            return True
    if given[0].moved:
        return _loses_any(result, given[0])
    return _names_rows(name, args, kwargs, given[0]) or mixes_rows(func, args, kwargs, result, given)


def _names_rows(name: str, args: Any, kwargs: Any, given: Tensor) -> bool:
    """Whether a function is told to reduce the first dimension, which may be as long as the second."""
    place = kwargs.get("dim", kwargs.get("axis", args[1] if len(args) > 1 else None))
    places = place if isinstance(place, (tuple, list)) else [place]
    whole = all(isinstance(one, int) and not isinstance(one, bool) for one in places)
    return name in _REDUCING and whole and any(one % given.dim() == 0 for one in places)


def _loses_any(result: Any, given: Tensor) -> bool:
    """Whether a result has fewer dimensions than a tensor whose rows lie anywhere."""
    return any(t.dim() < given.dim() for t in tensors_of((result,)))


def _dimension_of_normalize(args: Any, kwargs: Any, given: Tensor) -> int:
    place = kwargs.get("dim", args[2] if len(args) > 2 else 1)
    return place % given.dim() if isinstance(place, int) else 0


class RowStatistics(NamedTuple):
    """Statistics of each column over the rows of all ranks, equal on all ranks."""

    rows: int
    """Number of rows."""
    mean: Tensor
    std: Tensor
    """Standard deviation with Bessel's correction, as `torch.std` has it."""
    minimum: Tensor
    maximum: Tensor
    norm: Tensor
    """Euclidean norm."""

    @property
    def sum(self) -> Tensor:
        """Sum over all rows."""
        return self.mean * self.rows


def statistics_of(values: Tensor, transport: Transport) -> RowStatistics:
    """Compute statistics over rows of all ranks, in float64; a collective call.

    Args:
        values: Rows of this rank, [rows, ...]; a rank may have none.
        transport: Transport between the ranks.

    Raises:
        InputError: No rank has a row.
    """
    kind = values.dtype if values.dtype.is_floating_point else torch.float32
    rows = values.detach().double()
    sums = torch.cat([rows.new_tensor([len(rows)]), rows.sum(0).flatten(), rows.square().sum(0).flatten()])
    transport.all_reduce(sums, "sums of job.statistics")
    count, shape, columns = int(sums[0]), rows.shape[1:], (len(sums) - 1) // 2
    if not count:
        raise InputError("no rank has a row to take statistics of; expected a mask with at least one node")
    mean = (sums[1 : 1 + columns] / count).view(shape)
    # Around the mean of all: the difference of large sums would lose the digits of small deviations.
    spread = (rows - mean).square().sum(0)
    transport.all_reduce(spread, "deviations of job.statistics")
    ends = torch.full((2, *shape), -torch.inf, dtype=rows.dtype, device=rows.device)
    if len(rows):
        ends = torch.stack([rows.amax(0), -rows.amin(0)])
    transport.all_reduce(ends, "extremes of job.statistics", dist.ReduceOp.MAX)
    std = (spread / (count - 1)).sqrt() if count > 1 else torch.full_like(spread, float("nan"))
    norm = sums[1 + columns :].sqrt().view(shape)
    return RowStatistics(count, *(value.to(kind) for value in (mean, std, -ends[1], ends[0], norm)))


# Compilers trace tensors of other classes as what they are not; functions with these run uncompiled.
_uncompiled: set[Any] = getattr(torch._dynamo.config, "nontraceable_tensor_subclasses", set())
_uncompiled.add(OwnRows)
