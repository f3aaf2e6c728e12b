"""The command line."""

from wirewise.__main__ import main

__all__ = ["main"]
