"""Entry point of `python -m wirewise` and of the command `wirewise`."""

import os
import signal
from types import FrameType

__all__ = ["main"]


def main() -> None:
    """Run the command line; Ctrl-C ends it with exit code 130, also while modules are being imported."""
    ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if ours:
        # Nothing is started or written yet, and an exception in the middle of an import has any shape.
        signal.signal(signal.SIGINT, _end)
    from wirewise.cli.main import main as run

    if ours:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        run()
    except KeyboardInterrupt:
        # It came before or after the command itself.
        _end(signal.SIGINT, None)


def _end(number: int, frame: FrameType | None) -> None:
    os._exit(128 + number)


if __name__ == "__main__":
    main()
