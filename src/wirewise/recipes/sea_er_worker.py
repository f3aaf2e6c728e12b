"""One rank of rehearsal on a growing graph: `-m wirewise.recipes.sea_er_worker FOLDER`.

It reads what `recipes.sea_er` prepared and learns with the others; rank 0 writes FOLDER/outcome.json.
"""

from __future__ import annotations

import sys

import numpy as np

from wirewise.recipes.sea_er import Job, grown, learn
from wirewise.runtime.incremental import Peers
from wirewise.trials.rank import Rank, main

__all__ = ["work"]


def work(rank: Rank[Job]) -> None:
    """Learn all tasks with every method."""
    peers = Peers(np.load(rank.folder / "owner.npy"), rank.transport)
    rank.outcome(learn(rank.job, grown(rank.job, rank.folder), peers, rank.log))


if __name__ == "__main__":
    main(Job, work, sys.argv[1])
