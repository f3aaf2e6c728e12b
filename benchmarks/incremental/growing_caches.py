"""Row `caches` of `run.py`: what machines compute again and fetch when the graph grows by a task."""

import numpy as np
from growth import GrowingCache

from wirewise.graph import partition
from wirewise.planners.cache import CacheProblem, budgets_of
from wirewise.planners.cache.policies import vip

MACHINES = 4
ALPHA = 0.1
KEPT = 5
"""Nodes of each class, by lot."""
SETTING = (
    f"Vertex-wise inclusion probabilities; parts by METIS, {ALPHA} N rows kept in all; seeds are the new task's "
    f"training nodes and {KEPT} of each old class, in batches of 2,000 with fanouts 10 and 25."
)


def table(page, growing, fanouts=(10, 25), batch_size=2000):
    """Row by row of the page, and whether all was as planned anew."""
    owner = np.asarray(partition(growing.data, MACHINES, method="metis"), np.int64)
    problems = [problem(growing, task, owner, fanouts, batch_size) for task in range(len(growing.tasks))]
    budgets = budgets_of(problems[0], ALPHA)
    cache, found = GrowingCache(problems[0], budgets), []
    for after in problems[1:]:
        changes = cache.grow(after)
        anew = max(np.abs(cache.scores(k) - vip(after, k)).max() for k in range(MACHINES))
        found.append(
            (
                np.mean([change.recomputed for change in changes]) / (len(fanouts) * after.num_nodes),
                sum(len(change.fetch) for change in changes),
                sum(map(len, cache.kept)),
                anew,
            )
        )
    with page.table(
        "task", "probabilities computed again", "rows fetched", "rows kept", "differs from anew by"
    ) as row:
        for number in sorted({0, len(found) // 2, len(found) - 1}):
            show(row, str(number + 2), found[number])
        show(row, "mean", np.mean(found, axis=0))
    return max(anew for *_, anew in found)


def show(row, name, figures):
    again, fetched, kept, anew = figures
    row(name, f"{100 * again:.1f} %", f"{fetched:,.0f}", f"{kept:,.0f}", f"{anew:.0e}")


def problem(growing, task, owner, fanouts, batch_size):
    """Batches of the new task's training nodes and of those that are kept of the old ones."""
    labels, rng = growing.data.y, np.random.default_rng(0)
    old = [
        rng.choice(past.train[labels[past.train] == label], KEPT, replace=False)
        for past in growing.tasks[:task]
        for label in past.classes
    ]
    train = np.sort(np.concatenate([growing.tasks[task].train, *old]))
    return CacheProblem(
        edges=growing.edges(task),
        owner=owner,
        train=tuple(train[owner[train] == k] for k in range(MACHINES)),
        batch_size=batch_size,
        fanouts=fanouts,
    )
