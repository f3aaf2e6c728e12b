"""The first process of a host: starts a daemon, and reaps what others leave to it, as a machine's init does.

    python reaper.py PROGRAM ARGUMENT...

Slurm waits until no process of a job is left, zombies too, and looks after 1, 3 and 7 s. The init of some containers
takes longer than that to reap what it is left. Ends as the daemon ends, which is killed when this process is.
"""

import ctypes
import os
import signal
import sys

__all__ = ["main"]

_PDEATHSIG, _CHILD_SUBREAPER = 1, 36
"""Options of prctl."""


def main(argv: list[str]) -> int:
    """Run a command and reap all that ends meanwhile; its exit code, or 128 and the signal that ended it."""
    prctl = ctypes.CDLL(None).prctl
    prctl(_CHILD_SUBREAPER, 1)
    own = os.getpid()
    pid = os.fork()
    if not pid:
        prctl(_PDEATHSIG, signal.SIGKILL)
        if os.getppid() == own:
            os.execvp(argv[0], argv)
        os._exit(127)
    # The whole process group is told to end; this process goes last.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    while True:
        ended, status = os.wait()
        if ended == pid:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
