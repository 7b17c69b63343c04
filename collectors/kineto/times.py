"""Times of trace events, microseconds in text or floats, as exact integer nanoseconds.

A float64 of ``1789035343287912.456`` is ``1789035343287912.5``. Below 2**43 us the spacing of
floats is under 1 ns and ``floor`` plus the rounded fraction is exact for up to three decimals;
above, the decimal text has to be read.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import ROUND_HALF_UP, Decimal, InvalidOperation
from typing import Any

import numpy as np
import polars as pl

NULL = np.iinfo(np.int64).min
"""Marks a missing value in an integer column; no time or id takes it."""

EXACT_BELOW_US = 2.0**43
MAX_NS = 2**62
"""Later times (year 2116) are nonsense; leaves room for a base time within int64."""

_PLAIN = r"^\s*([+-]?)(\d{1,16})(?:\.(\d*))?\s*$"


class InexactTimesError(Exception):
    """The floats lost digits: the text of these times has to be read."""


def to_ns(values: Sequence[Any], *, unpadded: bool = False) -> np.ndarray:
    """Convert times in microseconds to int64 nanoseconds; :data:`NULL` where there is no number.

    Args:
        values: ints, floats, or text (exact however large).
        unpadded: fractions are a count of nanoseconds written without leading zeros
            (``.5`` = 5 ns), see :func:`is_unpadded`.

    Raises:
        InexactTimesError: a float is so large that it cannot hold its fraction.
    """
    kinds = set(map(type, values))
    if kinds and kinds <= {float, int}:
        result = _from_numbers(values, floats=float in kinds)
        if result is not None:
            return result
    if kinds == {str}:
        return _from_text(values, unpadded=unpadded)
    return np.array([_one(v, unpadded=unpadded) for v in values], dtype=np.int64)


def _from_numbers(values: Sequence[Any], *, floats: bool) -> np.ndarray | None:
    """The fast path; None when a number is beyond all times."""
    try:
        times = np.array(values, dtype=np.float64)
    except OverflowError:
        return None
    largest = np.abs(times).max()
    if floats and largest < EXACT_BELOW_US:
        whole = np.floor(times)
        result: np.ndarray = whole.astype(np.int64) * 1000
        result += np.rint((times - whole) * 1000).astype(np.int64)
        return result
    if not floats and largest < MAX_NS // 1000:
        return np.array(values, dtype=np.int64) * 1000
    return None


def _from_text(texts: Sequence[str], *, unpadded: bool) -> np.ndarray:
    parts = pl.Series("t", texts, dtype=pl.String).str.extract_groups(_PLAIN).struct.unnest()
    sign, whole, digits = (pl.col(c) for c in parts.columns)
    digits = digits.fill_null("")
    padded = pl.when(digits.str.len_bytes() < 3).then(digits.str.zfill(3)).otherwise(digits)
    fraction = (padded if unpadded else digits).str.pad_end(4, "0").str.slice(0, 4).cast(pl.Int64)
    us = whole.cast(pl.Int64)
    ns = pl.when(us < MAX_NS // 1000).then(us) * 1000 + (fraction + 5) // 10
    signed = pl.when(sign == "-").then(-ns).otherwise(ns)
    result = parts.select(signed.fill_null(NULL)).to_series().to_numpy(writable=True)
    for row in np.flatnonzero(result == NULL):  # exponents and the like are rare
        result[row] = _one(texts[int(row)])
    return result


def _one(value: object, *, unpadded: bool = False) -> int:
    if type(value) is float and abs(value) >= EXACT_BELOW_US:
        raise InexactTimesError
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return NULL
    if unpadded and isinstance(value, str) and value.count(".") == 1:
        whole, fraction = value.split(".")
        value = f"{whole}.{fraction.zfill(3)}"
    try:
        exact = Decimal(value.strip()) if isinstance(value, str) else Decimal(repr(value))
        if not exact.is_finite() or exact.copy_abs() >= MAX_NS // 1000:
            return NULL
        return int((exact * 1000).to_integral_value(ROUND_HALF_UP))
    except (InvalidOperation, OverflowError, ValueError):
        return NULL


def is_unpadded(texts: Sequence[str]) -> bool:
    """Tell whether fractions are nanosecond counts without leading zeros (``.5`` = 5 ns).

    Kineto wrote ``{us}.{ns}`` so for two weeks (dfd563dd 2024-03-18 to c4357a90 2024-04-03). Such
    a file shows fractions of different lengths, some with trailing zeros, and none of two or three
    digits that starts with a zero; no decimal writer does all three.
    """
    fractions = [text.partition(".")[2] for text in texts if "." in text]
    longer = [f for f in fractions if len(f) in (2, 3)]
    return (
        len(longer) >= 50
        and len({len(f) for f in fractions}) > 1
        and max(map(len, fractions)) <= 3
        and not any(f.startswith("0") for f in longer)
        and any(f.endswith("0") for f in longer)
    )
