"""What tests of the lab share."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]


def _reset_signals() -> None:
    """Handle signals that a shell in the background, or nohup, ignores, which children inherit."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


@contextlib.contextmanager
def start_owner(script, *arguments, **options):
    """A Python program of its own that owns a lab; it is given as text, and ended with the block."""
    owner = subprocess.Popen(
        [sys.executable, "-c", script, *arguments],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        preexec_fn=_reset_signals,
        **options,
    )
    with owner:
        try:
            yield owner
        finally:
            owner.kill()


def soon(condition, patience_s=60.0):
    """Whether the condition comes true."""
    deadline = time.monotonic() + patience_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def processes_with(text):
    """Ids of the processes whose command line holds the text."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and text.encode() in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue
    return found
