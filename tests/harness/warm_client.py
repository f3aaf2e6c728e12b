"""What `warm` makes a program of, whose last line calls `main`."""

import array
import json
import os
import signal
import socket
import sys

HANDED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def is_open(file: int) -> bool:
    """Whether a file is open, and was not just for the list of them."""
    try:
        os.fstat(file)
    except OSError:
        return False
    return True


def main(server: str, python: str) -> None:
    """Be what this program was asked to be.

    Args:
        server: Socket of the server.
        python: Python that takes what the server cannot do.
    """
    words = sys.argv[1:]
    while words[:1] in (["-u"], ["-B"]):
        del words[0]
    if not (words and (words[0] in ("-m", "-c") or words[0].endswith(".py"))):
        os.execv(python, [python, *sys.argv[1:]])
    files = [int(name) for name in os.listdir("/proc/self/fd")]  # noqa: PTH208
    files = [file for file in files if is_open(file)]
    channel = socket.socket(socket.AF_UNIX)
    channel.connect(server)
    # pathlib would take longer to load than all else here.
    folder = os.getcwd()  # noqa: PTH109
    request = {
        "words": words,
        "folder": folder,
        "environment": dict(os.environ),
        "pid": os.getpid(),
        "files": files,
        "ignored": [number for number in HANDED_ON if signal.getsignal(number) == signal.SIG_IGN],
    }
    text = json.dumps(request).encode()
    # A signal that comes before the process is known waits until it can be handed on.
    signal.pthread_sigmask(signal.SIG_BLOCK, HANDED_ON)
    rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", files))
    channel.sendmsg([len(text).to_bytes(8, "big")], [rights])
    channel.sendall(text)
    lines = channel.makefile()
    pid = int(lines.readline() or 0)
    for number in HANDED_ON:
        signal.signal(number, lambda got, _: os.kill(pid, got))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, HANDED_ON)
    status = int(lines.readline() or 256 * 70)
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        signal.signal(number, signal.SIG_DFL) if number != signal.SIGKILL else None
        os.kill(os.getpid(), number)
    os._exit(os.waitstatus_to_exitcode(status))
