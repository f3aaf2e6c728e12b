"""One rank: does the job of FOLDER/job.json and writes FOLDER/result.json.

worker.py FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import msgspec
import torch
from gains import gains
from passes import passes

from wirewise.files import write_json
from wirewise.trials.rank import join_job

JOBS = {"gains": gains, "passes": passes}


def main() -> None:
    torch.set_num_threads(1)
    folder = Path(sys.argv[1])
    job: dict[str, Any] = msgspec.json.decode((folder / "job.json").read_bytes())
    with join_job(600.0) as transport:
        found = JOBS[job.pop("kind")](folder, **job)
        if transport.rank == 0:
            write_json(folder / "result.json", found)


if __name__ == "__main__":
    main()
