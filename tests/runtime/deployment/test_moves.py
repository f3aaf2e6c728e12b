"""Rows that go to other ranks, and gradients that come back."""

from __future__ import annotations

import torch

from tests.harness.threads import run_ranks_as_threads
from wirewise.runtime.deployment.moves import ValueMove
from wirewise.runtime.transport import transport_of


def test_rows_go_where_they_are_taken_and_back():
    source, target = {0: (0, 3), 1: (3, 8)}, {2: (0, 2), 1: (2, 6), 0: (6, 8)}
    whole = torch.arange(16, dtype=torch.float64).view(8, 2)

    def rank(number, bare, store):
        move = ValueMove("x", 0, source, target, transport_of(bare, timeout_s=10.0, store=store))
        found = []
        for turn in range(3):
            own = whole[slice(*source[number])] + turn if number in source else None
            if own is not None and not turn:
                move.tell(own.requires_grad_())
            elif not move.makes and not turn:
                move.hear(torch.device("cpu"))
            else:
                move.open(forward=True)
            if own is not None:
                move.send(own.detach(), forward=True)
            rows = move.receive(None if own is None else own.detach(), forward=True)
            move.open(forward=False)
            move.send(10 * rows, forward=False)
            back = move.receive(10 * rows, forward=False) if move.makes else None
            found.append((rows, own, back, move.finish()))
        assert move.trained and move.dtype == torch.float64
        return found

    for number, turns in enumerate(run_ranks_as_threads(3, rank)):
        for turn, (rows, own, back, sent) in enumerate(turns):
            assert torch.equal(rows, whole[slice(*target[number])] + turn)
            assert own is None or torch.equal(back, 10 * own.detach())
            # 16 bytes a row: 0 sends 3 rows and gets 2, whose gradients it sends; 1 sends 2 and gets 1; 2 gets 2.
            assert sent == 16 * (3 + 2, 2 + 1, 2)[number]
