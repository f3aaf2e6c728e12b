"""Parsing and formatting of rates, sizes and element types; internally bytes per second and bytes."""

from __future__ import annotations

import math
import re

from wirewise.errors import InputError

__all__ = ["ITEM_BYTES", "format_rate", "format_size", "parse_links", "parse_rate", "parse_size"]

ITEM_BYTES = {
    "float64": 8,
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "complex64": 8,
    "complex128": 16,
    "int64": 8,
    "int32": 4,
    "int16": 2,
    "int8": 1,
    "uint8": 1,
    "bool": 1,
}
"""Bytes of an element, by torch's names of types."""

_DECIMAL = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_BINARY = {"ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}
_RATE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]i?|)(bit|b)?(/s|ps)?\s*", re.IGNORECASE)


def parse_rate(text: str | float) -> float:
    """Parse a rate such as "200mbit", "1gbit/s", "25MB/s" or "3.5 GiB/s" to bytes per second.

    "bit" means bits; "B" (either case) means bytes.

    Raises:
        InputError: The text is no rate above zero.
    """
    value, bits = _number(text, "rate", '"200mbit", "1gbit", "25MB/s" or bytes per second as a number')
    return value / 8 if bits else value


def parse_links(text: str) -> dict[int, str]:
    """Parse rates of individual hosts such as "2=50mbit,3=1gbit".

    Raises:
        InputError: The text is malformed, or names a host twice.
    """
    rates: dict[int, str] = {}
    for entry in filter(None, (e.strip() for e in text.split(","))):
        host, equals, rate = entry.partition("=")
        if not equals or not host.strip().isdecimal() or int(host) in rates:
            raise InputError(
                f"link {entry!r} is not understood; expected HOST=RATE, such as 2=50mbit, each host once"
            )
        parse_rate(rate)
        rates[int(host)] = rate.strip()
    return rates


def parse_size(text: str | int) -> int:
    """Parse a size such as "64KiB" or "1.5MB" to bytes.

    Raises:
        InputError: The text is no size above zero.
    """
    value, bits = _number(text, "size", '"64KiB", "1.5MB" or bytes as a number')
    if bits:
        raise InputError(f"size {text!r} is in bits; expected bytes, such as 64KiB")
    return round(value)


def _number(text: str | float, what: str, forms: str) -> tuple[float, bool]:
    if isinstance(text, (int, float)) and 0 < text < math.inf:
        return float(text), False
    match = _RATE.fullmatch(str(text))
    if match is None or float(match[1]) <= 0:
        raise InputError(f"{what} {text!r} is not understood; expected {forms}, above zero")
    prefix = match[2].lower()
    scale = _BINARY.get(prefix) or _DECIMAL[prefix]
    return float(match[1]) * scale, (match[3] or "").lower() == "bit"


def format_rate(bytes_per_s: float) -> str:
    """Format a rate in bits, such as "200 Mbit/s"."""
    return f"{_scaled(bytes_per_s * 8)}bit/s"


def format_size(size_bytes: float) -> str:
    """Format a size in decimal units, such as "45.7 MB"."""
    return f"{_scaled(size_bytes)}B"


def _scaled(value: float) -> str:
    for prefix in ("", "k", "M", "G", "T"):
        if abs(value) < 1000 or prefix == "T":
            break
        value /= 1000
    return f"{value:.3g} {prefix}"
