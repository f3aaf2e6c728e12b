"""Edges of a part: as seen by the user's code, and as passed to convolutions."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from wirewise.errors import InputError
from wirewise.graph import Part

__all__ = ["EdgeLists", "EdgeToken"]


class EdgeToken(Tensor):
    """Opaque tensor for the in-edges of own nodes, int64 [2, E], which only distributed convolutions read.

    Its sources may be on other ranks, so code that counted, sampled or indexed these edges itself would silently use
    another graph; every operation except shape, dtype and device is refused by name.
    """

    @staticmethod
    def of(count: int) -> EdgeToken:
        """Make the token of `count` edges, without memory, as some of torch reads without asking."""
        token: EdgeToken = Tensor._make_wrapper_subclass(EdgeToken, (2, count), dtype=torch.int64)  # type: ignore[attr-defined]
        return token

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Refuse what reaches torch's operators past `__torch_function__`, as sparse_coo_tensor does."""
        if func in (torch.ops.aten.detach.default, torch.ops.aten.alias.default):
            return cls.of(args[0].shape[1])
        raise _refused(str(func).removeprefix("aten.").partition(".")[0])

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Answer questions about the shape, copy by reference, refuse everything else."""
        name = getattr(func, "__name__", str(func))
        if name == "__set__" and not args[1] and func.__self__ is Tensor.requires_grad:
            # Gradient checkpointing copies the mark of each argument.
            return None
        if name == "__get__":
            name = getattr(getattr(func, "__self__", None), "__name__", name)
        if name in _HARMLESS:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **(kwargs or {}))
        if name in _KEEPS and isinstance(args[0], cls):
            return args[0]
        raise _refused(name)

    def __repr__(self) -> str:  # type: ignore[override]
        """Short, without values."""
        return f"EdgeToken({self.shape[1]} in-edges of own nodes)"


def _refused(name: str) -> InputError:
    return InputError(
        f"torch's {name} was applied to edge_index of job.data, whose sources may live on other ranks: expected that "
        "only convolutions read it. Compute degrees, dropped or chosen edges from the whole graph before pyg.Job, and "
        "store the result as an attribute of its nodes or edges"
    )


_HARMLESS = set(
    "shape size dim ndim device dtype numel nelement layout requires_grad __len__ is_cuda is_sparse is_floating_point "
    "is_complex is_quantized is_nested is_contiguous names is_leaf grad_fn grad is_mps is_xpu is_meta itemsize nbytes "
    "element_size get_device is_sparse_csr is_mkldnn _version".split()
)
_KEEPS = {"to", "clone", "detach", "contiguous", "pin_memory", "long", "cpu", "__deepcopy__"}


class EdgeLists:
    """Local edge lists [2, E] of all own, central and marginal nodes (targets numbered from 0).

    Args:
        part: Part of this rank.
        pairs: Edges of the part in local numbers, int64 [2, E], ascending by target.
        device: Device of the lists.
    """

    def __init__(self, part: Part, pairs: np.ndarray, device: torch.device) -> None:
        self.count = pairs.shape[1]
        self.split = int(np.searchsorted(pairs[1], part.num_central))
        """Edges of central nodes come first."""
        self.all = torch.from_numpy(pairs).to(device)
        self.central = torch.from_numpy(pairs[:, : self.split].copy()).to(device)
        marginal = pairs[:, self.split :].copy()
        marginal[1] -= part.num_central
        marginal[0] = _marginal_first(marginal[0], part)
        self.marginal = torch.from_numpy(marginal).to(device)


def _marginal_first(sources: np.ndarray, part: Part) -> np.ndarray:
    """Numbers of sources where the marginal nodes stand before the central ones; halo nodes stay where they are."""
    central, own = part.num_central, part.num_own
    moved = np.where(sources < central, sources + own - central, sources - central)
    return np.where(sources < own, moved, sources)
