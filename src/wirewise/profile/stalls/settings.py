"""Settings of the shim in a rank, passed as one environment variable."""

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
    """Folder for the files of all ranks."""
    cache_folder: str
    """Folder for cached items, preferably in memory."""
    data: str
    """Data of the run. "synthetic": the first batches, repeated. "cached": real data from memory. "cold": real data
    from storage. "partial": a fraction of it cached. "whole": the script's own data path."""
    warmup: int
    steps: int
    batches: int = 4
    """Number of batches of synthetic data."""
    cached_items: int = 1024
    """Maximum number of items that "cached" keeps; indices of a larger data set wrap around."""
    fraction: float = 1.0
    """Fraction of the items that "partial" caches."""

    def variables(self) -> dict[str, str]:
        """Environment variable for `read`."""
        return {VARIABLE: json.dumps(asdict(self))}

    @classmethod
    def read(cls) -> StallSettings:
        """Settings of this process."""
        return cls(**json.loads(os.environ[VARIABLE]))
