"""Ranks of a mesh as threads that hand each other tensors."""

from __future__ import annotations

import itertools
import threading
from math import prod

from wirewise.runtime.parallel.groups import ThreadGroups


def on_mesh(mesh, fn, *args):
    """Call `fn(groups, *args)` for each place of the mesh; results in row-major order."""
    meeting = ThreadGroups.create_rendezvous(prod(mesh), timeout_s=20.0)
    places = list(itertools.product(*map(range, mesh)))
    results, errors = [None] * len(places), []

    def run(number):
        try:
            results[number] = fn(ThreadGroups(mesh, places[number], meeting), *args)
        except BaseException as error:
            errors.append(error)
            meeting.barrier.abort()

    threads = [threading.Thread(target=run, args=(n,), daemon=True) for n in range(len(places))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30.0)
    if errors:
        raise next((e for e in errors if not isinstance(e, threading.BrokenBarrierError)), errors[0])
    return results
