"""What the shim in a rank is told, as one environment variable."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass

__all__ = ["ENTRY", "VARIABLE", "StallSettings"]

VARIABLE = "WIREWISE_STALLS"
ENTRY = "wirewise.profile.stalls.shim:install"


@dataclass(frozen=True)
class StallSettings:
    """Settings of one run.

    Rank processes read this without msgspec, which the environment of a script may lack.
    """

    folder: str
    """Takes the files of all ranks."""
    cache_folder: str
    """Takes cached items; best one in memory."""
    data: str
    """"synthetic": the first batches, again and again. "cached": real data out of memory. "cold": real data from
    storage. "partial": a part of it cached. "whole": the script's own data path."""
    warmup: int
    steps: int
    batches: int = 4
    """Batches of synthetic data."""
    cached_items: int = 1024
    """Most items that "cached" keeps; a larger data set is folded onto them."""
    fraction: float = 1.0
    """Share of the items that "partial" caches."""

    def variables(self) -> dict[str, str]:
        """The environment variable that `read` reads."""
        return {VARIABLE: json.dumps(asdict(self))}

    @classmethod
    def read(cls) -> StallSettings:
        """Settings of this process."""
        return cls(**json.loads(os.environ[VARIABLE]))
