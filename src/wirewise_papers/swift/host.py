"""Agent of one host in a protected training: `-m wirewise_papers.swift.host FOLDER HOST ADDRESS PORT`."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from wirewise.runtime.recovery.agent import PRELOAD, Agent
from wirewise.runtime.recovery.clock import CLOCK_AHEAD
from wirewise_papers.swift import worker as swift_worker

__all__ = ["main"]


def main(folder: Path, host: int, address: str, port: int) -> None:
    """Start the host's rank and spares, and supervise them until the training has ended.

    Raises:
        PeerError: The training has failed; the message says why.
    """
    settings = json.loads((folder / "script.json").read_text())
    # Ranks and spares inherit it.
    os.environ[CLOCK_AHEAD] = str(settings["clock_ahead_s"].get(os.uname().nodename, 0.0))
    more = [] if settings["job"] == "ddp" else ["wirewise_papers.swift.jobs"]
    Agent(
        swift_worker.main,
        [folder],
        ranks=settings["ranks"],
        host=host,
        hosts=settings["ranks"],
        spares=settings["spares"],
        address=address,
        port=port,
        folder=folder / f"agent-{host}",
        environment={"OMP_NUM_THREADS": "1"},
        preload=(*PRELOAD, swift_worker.__name__, *more),
    ).run()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
