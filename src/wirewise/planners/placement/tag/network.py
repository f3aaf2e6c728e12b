"""The network of TAG: attention over op groups and device groups, and a score for each action of an op group.

S. Zhang et al., TPDS 2023, with fewer weights, and with features of an action that are known beforehand. One function
serves numpy and, in training, torch.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wirewise.decoding import ArchiveError, read_npz
from wirewise.errors import InputError
from wirewise.files import atomic_file
from wirewise.planners.placement.tag.features import (
    ACTION,
    DEVICE,
    LINK,
    OP,
    PAIR,
    TENSOR,
    Observation,
    observe,
)
from wirewise.planners.placement.tag.problem import DeploymentProblem, Strategy
from wirewise.planners.placement.tag.search import Policy

__all__ = ["SHIPPED", "new_weights", "read_weights", "scores", "shipped_policy", "write_weights"]

SHIPPED = Path(__file__).parent / "data" / "tag.npz"
"""Weights by `wirewise_papers.tag.policy_training`."""

_WIDTH, _HEADS, _LAYERS = 32, 2, 2
_RELATIONS = {
    "before": ("ops", "ops", TENSOR),
    "behind": ("ops", "ops", TENSOR),
    "placed": ("devices", "ops", PAIR),
    "serves": ("ops", "devices", PAIR),
    "linked": ("devices", "devices", LINK),
}
"""Kinds of nodes that take from others, those others, and features of the edges between them."""
_UNIFORM = 0.5
"""Fraction of the probability that all actions share equally, so that a network that is sure and wrong tries others."""

Weights = Mapping[str, Any]


def new_weights(seed: int) -> dict[str, NDArray[np.float32]]:
    """Sample the initial weights of the network."""
    random = np.random.default_rng(seed)
    shapes: dict[str, tuple[int, int]] = {"ops": (OP, _WIDTH), "devices": (DEVICE, _WIDTH)}
    for layer in range(_LAYERS):
        for name, (_, _, size) in _RELATIONS.items():
            at = f"{layer}.{name}"
            shapes |= {
                f"{at}.target": (_WIDTH, _HEADS),
                f"{at}.source": (_WIDTH, _HEADS),
                f"{at}.edge": (size, _HEADS),
            }
            shapes |= {f"{at}.value": (_WIDTH, _WIDTH), f"{at}.carried": (size, _WIDTH)}
        shapes |= {f"{layer}.ops": (_WIDTH, _WIDTH), f"{layer}.devices": (_WIDTH, _WIDTH)}
    shapes |= {
        "place": (_WIDTH + 1, _WIDTH),
        "action": (2 * _WIDTH + ACTION, _WIDTH),
        "mixed": (_WIDTH, _WIDTH),
        "score": (_WIDTH, 1),
    }
    found = {
        name: random.normal(0, 1 / np.sqrt(rows), (rows, columns)).astype(np.float32)
        for name, (rows, columns) in shapes.items()
    }
    return found | {
        f"{name}+": np.zeros(columns, np.float32)
        for name, (_, columns) in shapes.items()
        if name in ("ops", "devices", "place", "action", "mixed")
    }


def scores(weights: Weights, observation: Observation, xp: Any = np) -> Any:
    """Score of each action, [A]; invariant under relabelling of op groups and device groups.

    Args:
        weights: Weights by name, arrays of `xp`.
        observation: Features, arrays of `xp`.
        xp: Either numpy or torch.
    """
    nodes = {
        "ops": xp.tanh(observation.ops @ weights["ops"] + weights["ops+"]),
        "devices": xp.tanh(observation.devices @ weights["devices"] + weights["devices+"]),
    }
    back = xp.swapaxes(observation.tensors, 0, 1)
    edges = {
        "before": (observation.tensors, observation.tensors[..., 0] > 0),
        "behind": (back, back[..., 0] > 0),
        "placed": (xp.swapaxes(observation.pairs, 0, 1), None),
        "serves": (observation.pairs, None),
        "linked": (observation.links, None),
    }
    for layer in range(_LAYERS):
        into: dict[str, list[Any]] = {"ops": [], "devices": []}
        for name, (target, source, _) in _RELATIONS.items():
            own = {
                key: weights[f"{layer}.{name}.{key}"]
                for key in ("target", "source", "edge", "value", "carried")
            }
            into[target].append(_attention(own, nodes[target], nodes[source], *edges[name], xp))
        nodes = {
            kind: nodes[kind] + xp.tanh(sum(found) / len(found) @ weights[f"{layer}.{kind}"])
            for kind, found in into.items()
        }
    actions, devices = observation.places.shape
    op = nodes["ops"][observation.group]
    each = xp.concatenate(
        [
            xp.broadcast_to(nodes["devices"][None], (actions, devices, _WIDTH)),
            observation.places[..., None],
        ],
        axis=2,
    )
    placed = xp.tanh(each @ weights["place"] + weights["place+"])
    whole = xp.concatenate(
        [placed.mean(axis=1), xp.broadcast_to(op[None], (actions, _WIDTH)), observation.actions], axis=1
    )
    hidden = xp.tanh(whole @ weights["action"] + weights["action+"])
    hidden = xp.tanh(hidden @ weights["mixed"] + weights["mixed+"])
    return (hidden @ weights["score"])[:, 0]


def _attention(own: Weights, target: Any, source: Any, edge: Any, there: Any, xp: Any) -> Any:
    """Attention of targets to sources, [M, width]; zero where there is no edge."""
    score = (target @ own["target"])[:, None] + (source @ own["source"])[None] + edge @ own["edge"]
    score = xp.maximum(score, 0.2 * score)
    raised = xp.exp(score - xp.amax(score, axis=1, keepdims=True))
    if there is not None:
        raised = raised * there[..., None]
    share = raised / (xp.sum(raised, axis=1, keepdims=True) + 1e-9)
    carried = (source @ own["value"])[None] + edge @ own["carried"]
    m, n, width = carried.shape
    taken = xp.sum(share[..., None] * carried.reshape(m, n, _HEADS, width // _HEADS), axis=1)
    return taken.reshape(m, width)


def shipped_policy(path: str | os.PathLike[str] | None = None) -> Policy:
    """Policy with the weights of a file, which defaults to the shipped ones.

    Raises:
        InputError: The file holds no weights.
    """
    weights = read_weights(SHIPPED if path is None else path)

    def policy(problem: DeploymentProblem, strategy: Strategy, place: int) -> NDArray[np.float64]:
        found = scores(weights, observe(problem, strategy, place))
        raised = np.exp(found - found.max())
        likely: NDArray[np.float64] = (1 - _UNIFORM) * raised / raised.sum() + _UNIFORM / len(raised)
        return likely

    return policy


def read_weights(path: str | os.PathLike[str]) -> dict[str, NDArray[np.float32]]:
    """Read the weights in a file.

    Raises:
        InputError: The file is unreadable or malformed.
    """
    wanted = {name: array.shape for name, array in new_weights(0).items()}
    try:
        found = {name: np.asarray(array, np.float32) for name, array in read_npz(path).items()}
    except (ArchiveError, OSError, ValueError) as error:
        raise InputError(f"{os.fspath(path)}: {error}; {_EXPECTED}") from error
    if {name: array.shape for name, array in found.items()} != wanted or not all(
        np.isfinite(array).all() for array in found.values()
    ):
        raise InputError(
            f"{os.fspath(path)}: arrays of other names or shapes, or figures that are none; {_EXPECTED}"
        )
    return found


_EXPECTED = "expected weights by `python -m wirewise_papers.tag.policy_training`"


def write_weights(weights: Mapping[str, NDArray[np.float32]], path: str | os.PathLike[str]) -> None:
    """Write the weights in half precision, atomically.

    Raises:
        InputError: The folder is missing, not writable or full.
    """
    with atomic_file(path) as file:
        found: dict[str, Any] = {name: array.astype(np.float16) for name, array in weights.items()}
        np.savez_compressed(file, **found)
