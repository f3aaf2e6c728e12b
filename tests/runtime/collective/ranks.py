"""Ranks as threads of this process, each with a group of its own."""

import threading

import torch.distributed as dist

from wirewise.runtime.collective import connect


def on_ranks(size, fn, *, timeout_s=20.0, patience_s=60.0, **options):
    """`fn(group)` on every rank; the first error is raised again. Groups are closed when all are done."""
    store = dist.HashStore()
    results, errors, groups = [None] * size, [], [None] * size

    def run(rank):
        try:
            groups[rank] = connect(store, rank, size, timeout_s=timeout_s, interface="lo", **options)
            results[rank] = fn(groups[rank])
        except BaseException as error:
            error.add_note(f"on rank {rank}")
            errors.append(error)

    threads = [threading.Thread(target=run, args=(r,), name=f"rank-{r}", daemon=True) for r in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(patience_s)
    late = [thread.name for thread in threads if thread.is_alive()]
    for group in groups:
        if group is not None:
            group.close()
    if errors:
        raise errors[0]
    assert not late, f"{late} did not end"
    return results
