"""Rows that go to other ranks, and gradients that come back."""

from __future__ import annotations

import pytest
import torch

from tests.harness.threads import run_ranks_as_threads
from wirewise.errors import InputError
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
                move.send_kind(own.requires_grad_())
            elif not move.makes and not turn:
                move.receive_kind(torch.device("cpu"))
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


@pytest.mark.parametrize(
    ("shape", "dtype"), [((), torch.float32), ((2,), torch.complex128), ((1,) * 12, torch.bfloat16)]
)
def test_kinds_of_all_messages_arrive(shape, dtype):
    """Complex numbers of double precision, and as many dimensions as messages between stages have."""

    def rank(number, bare, store):
        move = ValueMove("x", 0, {0: (0, 3)}, {1: (0, 3)}, transport_of(bare, timeout_s=10.0, store=store))
        if number == 0:
            move.send_kind(torch.ones(3, *shape, dtype=dtype))
            move.send(torch.ones(3, *shape, dtype=dtype), forward=True)
        else:
            move.receive_kind(torch.device("cpu"))
            assert torch.equal(move.receive(None, forward=True), torch.ones(3, *shape, dtype=dtype))
        move.finish()
        return tuple(move.shape), move.dtype, move.trained

    assert run_ranks_as_threads(2, rank) == [(shape, dtype, False)] * 2


@pytest.mark.parametrize(("shape", "dtype"), [((1,) * 13, torch.float32), ((2,), torch.float8_e4m3fn)])
def test_kinds_that_no_message_has_are_refused_by_name(shape, dtype):
    def rank(number, bare, store):
        move = ValueMove("x", 0, {0: (0, 1)}, {}, transport_of(bare, timeout_s=10.0, store=store))
        with pytest.raises(InputError, match=rf"rows of 'x' are {dtype}.*expected at most 12 dimensions"):
            move.send_kind(torch.ones(1, *shape).to(dtype))

    run_ranks_as_threads(1, rank)
