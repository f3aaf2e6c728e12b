"""Compact encoding of ops: attributes common to ops of many steps once, then only times in microseconds."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from wirewise.trace.records import Op

__all__ = ["Row", "Unpacker", "pack_form", "pack_times"]

Row = tuple[int, int, int, int]
"""Number of the form, start and end in microseconds, and number of the collective or -1."""

_ENCODER = msgspec.json.Encoder()


def pack_form(op: Op) -> bytes:
    """Encode a form: all attributes of an op except times, step and seq.

    Forms are numbered from 0 in the order of their lines.
    """
    return _ENCODER.encode({"form": op})


def pack_times(step: int, rows: Sequence[Row]) -> bytes:
    """Encode the ops of one step, start times as differences.

    Where a is not after b in `rows`, it is not after b in the line either: times are never rounded apart.
    """
    packed = []
    before = 0
    for form, start, end, seq in rows:
        short = [form, start - before, end - start]
        packed.append([*short, seq] if seq >= 0 else short)
        before = start
    return _ENCODER.encode({"times": (step, packed)})


class Unpacker:
    """Decoder of the forms and times of one file, in order."""

    def __init__(self) -> None:
        self._forms: list[Op] = []

    def form(self, op: Op) -> None:
        """Decode the next form."""
        self._forms.append(op)

    def times(self, step: int, rows: Sequence[Sequence[int]]) -> list[Op]:
        """Decode the ops of a line.

        Raises:
            msgspec.ValidationError: A row is of another length or of a form that was not there before it.
        """
        ops = []
        start = 0
        for row in rows:
            if len(row) not in (3, 4) or not 0 <= row[0] < len(self._forms):
                raise msgspec.ValidationError(
                    f"times {list(row)}; expected [form, start, length] or [form, start, length, seq] with one "
                    f"of {len(self._forms)} forms"
                )
            form = self._forms[row[0]]
            start += row[1]
            ops.append(
                msgspec.structs.replace(
                    form,
                    step=step,
                    start_s=start / 1e6,
                    end_s=(start + row[2]) / 1e6,
                    seq=row[3] if len(row) == 4 else -1,
                    enqueued_s=start / 1e6 if form.kind == "communication" else -1.0,
                )
            )
        return ops
