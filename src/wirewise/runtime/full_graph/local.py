"""View of a model on its part: inputs, neighbourhoods and the exchange."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from wirewise import rng
from wirewise.graph import Part, SparseRows, ops
from wirewise.runtime.full_graph.exchange import HaloExchange
from wirewise.runtime.full_graph.neighbourhood import Neighbourhood

__all__ = ["LocalGraph", "PartTensors"]

_DROPOUT = 0xD0


class PartTensors:
    """Tensors of one part that all modes of a job share.

    The features of the halo are stored with the part, so the first aggregation is done once, here, and the
    first layer sends nothing in any epoch.

    Args:
        part: Part of this rank.
        dtype: Floating-point type, float32 or float64.
        device: Device of the tensors.
        dense: Make sparse input features dense, for models that know tensors only.
    """

    def __init__(
        self,
        part: Part,
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        dense: bool = False,
    ) -> None:
        self.part, self.dtype, self.device, self.dense = part, dtype, torch.device(device), dense
        self.ids = torch.from_numpy(part.own_ids).to(device)
        self.y = torch.from_numpy(np.asarray(part.y)).to(device)
        split = torch.from_numpy(part.split.astype(np.int64)).to(device)
        self.split_rows = {name: (split == i).nonzero()[:, 0] for i, name in enumerate(SPLITS)}
        self._neighbourhoods: dict[str, Neighbourhood] = {}
        self._inputs: dict[str, Any] = {}

    def neighbourhood(self, kind: str) -> Neighbourhood:
        """Aggregation over in-neighbours of one kind ("gcn", "mean", "sum"), built once."""
        if kind not in self._neighbourhoods:
            self._neighbourhoods[kind] = Neighbourhood(self.part, kind, dtype=self.dtype, device=self.device)
        return self._neighbourhoods[kind]

    @property
    def neighbourhood_kinds(self) -> tuple[str, ...]:
        """Kinds of the aggregations that the model has used, in the order of their first use."""
        return tuple(self._neighbourhoods)

    def main_neighbourhood(self) -> Neighbourhood:
        """Aggregation that the model uses; "mean" if it has its own convolutions."""
        return (
            next(iter(self._neighbourhoods.values())) if self._neighbourhoods else self.neighbourhood("mean")
        )

    def features(self) -> Any:
        """Input features of own and halo rows: a dense tensor, or sparse rows for `ops.sparse_linear`."""
        return self._input("raw", lambda x: x)

    def own_features(self) -> Any:
        """Input features of own rows."""
        return self._input("own", lambda x: _first_rows(x, self.part.num_own))

    def aggregated_features(self, kind: str) -> Any:
        """Input features aggregated over in-neighbours, [own, F]."""
        return self._input(kind, self.neighbourhood(kind).aggregate_inputs)

    def _input(self, key: str, make: Callable[[Any], Any]) -> Any:
        if key not in self._inputs:
            x = self.part.x.to_dense() if self.dense and isinstance(self.part.x, SparseRows) else self.part.x
            self._inputs[key] = self._on_device(make(x))
        return self._inputs[key]

    def _on_device(self, x: Any) -> Any:
        """Features as training reads them, sharing the part's arrays where type and device allow."""
        if isinstance(x, SparseRows):
            real = np.float64 if self.dtype == torch.float64 else np.float32
            data = np.ones(len(x.indices), real) if x.data is None else x.data.astype(real, copy=False)
            x = ops.Csr(x.indptr, x.indices, data, num_columns=x.num_columns)
        if isinstance(x, ops.Csr):
            return x.to(self.device)
        # torch has no read-only tensors.
        return torch.from_numpy(x if x.flags.writeable else x.copy()).to(self.device, self.dtype)


def _first_rows(x: Any, count: int) -> Any:
    """The first rows, sharing the arrays."""
    if not isinstance(x, SparseRows):
        return x[:count]
    end = int(x.indptr[count])
    data = None if x.data is None else x.data[:end]
    return SparseRows(
        indptr=x.indptr[: count + 1], indices=x.indices[:end], data=data, num_columns=x.num_columns
    )


SPLITS = ("train", "validation", "test")


@dataclass
class LocalGraph:
    """Part as seen by one mode of a job during training."""

    tensors: PartTensors
    exchange: HaloExchange
    seed: int = 0
    _keys: dict[tuple[int, int], int] = field(default_factory=dict)

    @property
    def part(self) -> Part:
        """The part itself."""
        return self.tensors.part

    @property
    def training(self) -> bool:
        """Whether dropout and quantization noise are enabled."""
        return self.exchange.training

    def dropout_key(self, layer: int) -> int:
        """Key of a layer's dropout mask in this epoch; masks depend on seed, epoch, layer, node and column."""
        key = (self.exchange.epoch, layer)
        if key not in self._keys:
            self._keys = {key: rng.stream_key(self.seed, self.exchange.epoch, _DROPOUT, layer)}
        return self._keys[key]

    def inputs_linear(self, x: Any, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """Apply a linear layer, x @ weight.T + bias, to dense or sparse input features; weight is [out, F]."""
        if isinstance(x, Tensor):
            return torch.nn.functional.linear(x, weight, bias)
        return ops.sparse_linear(x, weight, bias)
