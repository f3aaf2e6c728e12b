"""What incremental learners are told, and the methods by name."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from wirewise.errors import InputError
from wirewise.graph.rehearsal import KERNELS

__all__ = ["DECAYS", "DEFAULT_METHOD", "METHODS", "MIXINGS", "SETTINGS", "Method", "Settings"]

SETTINGS = ("task", "class")
"""Whether a vertex is told its task, and only that task's classes compete; or all classes seen so far do."""
MIXINGS = ("sum", "mean")
"""How the losses of old tasks enter beside that of the new one: each as much, or all together as much. Together, the
classes of a new task outweigh old ones the more, the more old ones there are: where all compete, they win."""

DECAYS = ("l2", "decoupled")
"""Weight decay inside Adam, which makes it a full step for weights without other gradients, such as those of old tasks'
classes; or beside it (AdamW: Loshchilov, Hutter, ICLR 2019)."""


class Method(NamedTuple):
    """How a method keeps what it knows."""

    learner: str = "bare"
    """bare, replay, gem, ewc, lwf, ssrm or joint."""
    selection: str = ""
    """Which vertices are kept, a key of `graph.rehearsal.SELECTIONS`."""
    matched: bool = False
    """Whether rehearsed vertices are weighted by kernel mean matching."""


METHODS = {
    "bare": Method(),
    "er-random": Method("replay", "random"),
    "er-cm": Method("replay", "cm"),
    "er-mf": Method("replay", "mf"),
    "herding": Method("replay", "herding"),
    "k-centre": Method("replay", "k-centre"),
    "coverage": Method("replay", "coverage"),
    "er-random+kmm": Method("replay", "random", matched=True),
    "coverage+kmm": Method("replay", "coverage", matched=True),
    "sea-er": Method("replay", "k-centre", matched=True),
    "gem": Method("gem", "random"),
    "ewc": Method("ewc"),
    "lwf": Method("lwf"),
    "ssrm": Method("ssrm", "random"),
    "joint": Method("joint"),
}
"""Fine-tuning; experience replay by selection (er-*: ER-GNN's samplers); the same with matched weights; SEA-ER as
published, k centres with matched weights; regularised fine-tuning; training on all tasks so far, the upper bound."""

DEFAULT_METHOD = "coverage"
"""What to take where nothing is known: `benchmarks/incremental` compares it with the others."""


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything but the graph and the method. Rates and epochs as of CGLB where not said otherwise."""

    setting: str = "task"
    """One of `SETTINGS`."""
    budget: int = 5
    """Vertices of each class that are kept."""
    hidden: int = 64
    """Width of the hidden rows of the two-layer GCN; 256 in CGLB."""
    epochs: int = 30
    """Of each task; 200 in CGLB."""
    learning_rate: float = 0.005
    weight_decay: float = 5e-4
    decay: str = "decoupled"
    """One of `DECAYS`; l2 is CGLB's."""
    mixing: str = "sum"
    """One of `MIXINGS`; the sum over old tasks is SEA-ER's."""
    kernel: str = "rbf"
    """Of kernel mean matching; rbf has the median distance as bandwidth."""
    most: float = 3.0
    """Largest weight of a rehearsed vertex."""
    balanced: bool = True
    """Bound the sum of matched weights in every class by itself."""
    gem_margin: float = 0.5
    ewc_strength: float = 1e4
    lwf_strength: float = 1.0
    lwf_temperature: float = 2.0
    ssrm_strength: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        """Check ranges.

        Raises:
            InputError: A value that cannot be used.
        """
        for name in ("budget", "hidden", "epochs"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} is {getattr(self, name)}; expected at least 1")
        for name, known in (
            ("setting", SETTINGS),
            ("mixing", MIXINGS),
            ("decay", DECAYS),
            ("kernel", KERNELS),
        ):
            if getattr(self, name) not in known:
                raise InputError(
                    f"{name} {getattr(self, name)!r} is unknown; expected one of: {', '.join(known)}"
                )
        if not self.learning_rate > 0 or self.most < 1 or self.seed < 0:
            raise InputError(
                f"got learning rate {self.learning_rate}, largest weight {self.most} and seed {self.seed}; expected "
                "a positive rate, a weight of at least 1 and a seed of at least 0"
            )
