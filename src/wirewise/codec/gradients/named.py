"""Codecs of gradients by name."""

from __future__ import annotations

from typing import Any

from wirewise.codec.gradients.blocks import Int4, Int8
from wirewise.codec.gradients.casts import BF16, FP16
from wirewise.codec.gradients.codec import GradientCodec
from wirewise.codec.gradients.dgc import DGC
from wirewise.codec.gradients.levels import QSGD, TernGrad
from wirewise.codec.gradients.lowrank import PowerSGD
from wirewise.codec.gradients.signs import EFSign, OneBit, SignSGD, Signum
from wirewise.codec.gradients.sparse import RandomK, TopK
from wirewise.errors import InputError

__all__ = ["CODECS", "make"]

CODECS: dict[str, type[GradientCodec]] = {
    "fp16": FP16,
    "bf16": BF16,
    "topk": TopK,
    "dgc": DGC,
    "randomk": RandomK,
    "efsign": EFSign,
    "signsgd": SignSGD,
    "signum": Signum,
    "onebit": OneBit,
    "qsgd": QSGD,
    "terngrad": TernGrad,
    "int8": Int8,
    "int4": Int4,
    "powersgd": PowerSGD,
}


def make(name: str, **options: Any) -> GradientCodec:
    """Make a codec by name.

    Args:
        name: A key of `CODECS`.
        options: Options of its class; all take `implementation` ("auto", "numba" or "torch").

    Raises:
        InputError: The name or an option is unknown, or a value is invalid.
    """
    if name not in CODECS:
        raise InputError(f"unknown gradient codec {name!r}; expected one of: {', '.join(CODECS)}")
    try:
        return CODECS[name](**options)
    except TypeError as cause:
        raise InputError(f"codec {name!r} does not take these options: {cause}") from cause
