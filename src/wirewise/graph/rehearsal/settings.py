"""Settings of incremental learners, and the methods by name."""

from __future__ import annotations

from typing import Annotated, Literal, NamedTuple

from wirewise import options as opt
from wirewise.graph.rehearsal.matching import KERNELS

__all__ = ["DEFAULT_METHOD", "METHODS", "Method", "Settings"]


class Method(NamedTuple):
    """Incremental learning method: how it retains earlier tasks."""

    learner: str = "bare"
    """Name of the learner: bare, replay, gem, ewc, lwf, ssrm or joint."""
    selection: str = ""
    """Selection of the kept nodes, a key of `graph.rehearsal.SELECTIONS`."""
    matched: bool = False
    """Whether rehearsed nodes are weighted by kernel mean matching."""


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
"""Default where nothing is known: `benchmarks/incremental` compares it with the others."""


class Settings(opt.Options, frozen=True, kw_only=True):
    """All settings except graph and method; rates and epochs are those of CGLB unless stated otherwise."""

    budget: Annotated[opt.Count, opt.about("Number of nodes kept per class.")] = 5
    setting: Annotated[
        Literal["task", "class"],
        opt.about(
            "task: only the classes of a node's task, which is known, compete; class: all classes so far."
        ),
    ] = "task"
    epochs: Annotated[opt.Count, opt.about("Training epochs of each task; 200 in CGLB.")] = 30
    hidden: Annotated[opt.Count, opt.about("Hidden width of the two-layer GCN; 256 in CGLB.")] = 64
    learning_rate: opt.LearningRate = 0.005
    weight_decay: float = 5e-4
    decay: Annotated[
        Literal["decoupled", "l2"],
        opt.about(
            "Weight decay: decoupled from Adam's steps, or l2 inside them, as in CGLB, a full step for "
            "weights without other gradients, such as those of old tasks' classes."
        ),
    ] = "decoupled"
    mixing: Annotated[
        Literal["sum", "mean"],
        opt.about(
            "Losses of old tasks: in the sum each weighs as much as that of the new one; in the mean all "
            "together do, and classes of a new task outweigh old ones."
        ),
    ] = "sum"
    kernel: Annotated[
        str, opt.about("Kernel of mean matching; rbf has the median distance as bandwidth.", words=KERNELS)
    ] = "rbf"
    most: Annotated[float, opt.about("Maximum weight of a rehearsed node.", ge=1, option="--most-weight")] = (
        3.0
    )
    balanced: bool = True
    """Whether the sum of matched weights is bounded in every class separately."""
    gem_margin: float = 0.5
    ewc_strength: float = 1e4
    lwf_strength: float = 1.0
    lwf_temperature: float = 2.0
    ssrm_strength: float = 1.0
    seed: Annotated[opt.Seed, opt.about("Seed of the split, the weights and the lots.")] = 0
