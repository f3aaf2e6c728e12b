"""Training, validation and test nodes: masks, columns of masks, or node ids."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wirewise.errors import GraphError
from wirewise.graph.data import NO_SPLIT, TEST, TRAIN, VALIDATION
from wirewise.graph.foreign import to_numpy

__all__ = ["INDEX_NAMES", "MASKS", "mask_of", "masks_of", "split_of"]

MASKS: Mapping[str, tuple[str, ...]] = {
    "train_mask": ("train_idx", "train_index"),
    "val_mask": ("val_idx", "valid_idx", "val_index", "valid_index"),
    "test_mask": ("test_idx", "test_index"),
}
"""Names of the masks, and those under which data sets hold the numbers of the same nodes."""

INDEX_NAMES = tuple(name for names in MASKS.values() for name in names)

_SPLITS = dict(zip(MASKS, (TRAIN, VALIDATION, TEST), strict=True))


def masks_of(data: Any, nodes: int, mask_column: int | None) -> dict[str, NDArray[np.bool_]]:
    """Masks that the object has, bool [N] by name.

    Args:
        data: Object with masks, or with node ids under the names of `MASKS`.
        nodes: Number of nodes, N.
        mask_column: Index of the split to use if masks are [N, splits]. None if they are [N].

    Raises:
        GraphError: A mask does not fit the nodes, or a node id does not exist.
    """
    masks = {}
    for name, others in MASKS.items():
        for key in (name, *others):
            if (given := getattr(data, key, None)) is not None:
                masks[name] = mask_of(key, given, nodes, mask_column)
                break
    return masks


def mask_of(name: str, mask: Any, nodes: int, column: int | None = None) -> NDArray[np.bool_]:
    """Convert a mask [N] or [N, splits] of bools, zeros and ones, or node ids, to bool [N].

    Raises:
        GraphError: It is none of these; the message names `name`.
    """
    values = to_numpy(mask)
    if values.dtype.kind in "iu" and not _is_mask(values, nodes):
        return _mask_of_numbers(name, values.reshape(-1), nodes)
    if values.ndim == 2:
        values = _column(name, values, column)
    if values.shape != (nodes,):
        raise GraphError(
            f"{name} has shape {list(values.shape)}; expected one value for each of {nodes} nodes, or their numbers"
        )
    if values.dtype.kind not in "biuf" or not bool(np.isin(values, (0, 1)).all()):
        raise GraphError(
            f"{name} is {values.dtype} with other values than 0 and 1; expected a bool for each node, or the numbers "
            "of nodes as integers"
        )
    return values.astype(bool)


def _is_mask(values: NDArray[Any], nodes: int) -> bool:
    return values.shape[:1] == (nodes,) and bool(np.isin(values, (0, 1)).all())


def _mask_of_numbers(name: str, numbers: NDArray[Any], nodes: int) -> NDArray[np.bool_]:
    wrong = numbers[(numbers < 0) | (numbers >= nodes)]
    if len(wrong):
        raise GraphError(f"{name} names node {wrong[0]}; expected numbers from 0 to {nodes - 1}")
    mask = np.zeros(nodes, dtype=bool)
    mask[numbers] = True
    if np.count_nonzero(mask) != len(numbers):
        twice = np.flatnonzero(np.bincount(numbers.astype(np.int64), minlength=nodes) > 1)[0]
        raise GraphError(f"{name} names node {twice} more than once; expected each node once")
    return mask


def _column(name: str, values: NDArray[Any], column: int | None) -> NDArray[Any]:
    chosen = 0 if column is None and values.shape[1] == 1 else column
    if chosen is None or not 0 <= chosen < values.shape[1]:
        raise GraphError(
            f"mask_column is {column}; {name} has {values.shape[1]} columns, a split each: expected the number of "
            f"one, 0 to {values.shape[1] - 1}"
        )
    return values[:, chosen]


def split_of(data: Any, nodes: int, masks: Mapping[str, NDArray[np.bool_]]) -> NDArray[np.uint8]:
    """Split of each node: the object's own, or derived from its masks.

    Raises:
        GraphError: There is neither a split nor a training mask.
    """
    given = getattr(data, "split", None)
    if given is not None:
        return to_numpy(given).astype(np.uint8)
    if "train_mask" not in masks:
        raise GraphError(
            "the Data object has neither train_mask nor split, and no train_idx; expected one of them"
        )
    split = np.full(nodes, NO_SPLIT, dtype=np.uint8)
    # The first of them counts where a node is in several.
    for name, value in reversed(_SPLITS.items()):
        if name in masks:
            split[masks[name]] = value
    return split
