"""One rank: does the job of FOLDER/job.json and writes FOLDER/result.json.

worker.py FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import msgspec
import torch
import torch.distributed as dist
from gains import gains
from passes import passes

from wirewise.files import atomic_file

JOBS = {"gains": gains, "passes": passes}


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    folder = Path(sys.argv[1])
    job: dict[str, Any] = msgspec.json.decode((folder / "job.json").read_bytes())
    found = JOBS[job.pop("kind")](folder, **job)
    if dist.get_rank() == 0:
        with atomic_file(folder / "result.json") as file:
            file.write(msgspec.json.encode(found))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
