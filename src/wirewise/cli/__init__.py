"""The command line."""

from wirewise.cli.main import main

__all__ = ["main"]
