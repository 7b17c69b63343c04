"""Columns that grow chunk by chunk, and become polars series once.

Integers are numpy arrays with :data:`~collectors.kineto.times.NULL` for missing; text is
dictionary encoded at once: a trace of a million events holds about a thousand distinct strings.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import polars as pl

from collectors.kineto.times import NULL

_NUMBER_IN = re.compile(r"-?\d{1,20}")


class IntColumn:
    """Integers with gaps. Values that are no integer become null and are counted.

    Args:
        wrap: keep uint64 values as the int64 with the same bits (hashes, addresses) instead of
            giving up on those above 2**63.
        embedded: accept text with one number in it (``stream 7`` as a thread id).
        limit: values of larger magnitude are no such thing (a device has a small index).
    """

    def __init__(
        self, *, wrap: bool = False, embedded: bool = False, limit: int | None = None
    ) -> None:
        self._parts: list[np.ndarray | tuple[int, int]] = []  # or (value, how often)
        self._wrap, self._embedded, self._limit = wrap, embedded, limit
        self.bad = 0

    def extend(self, values: Sequence[Any]) -> None:
        """Append one value a row."""
        missing = values.count(None)
        if missing == len(values):
            self._parts.append((NULL, missing))
            return
        filled = [NULL if v is None else v for v in values] if missing else values
        try:
            part = np.fromiter(filled, np.int64, len(values))
        except (TypeError, ValueError, OverflowError):
            part = np.array([self._one(v) for v in values], dtype=np.int64)
        if self._limit is not None:
            beyond = np.abs(part) > self._limit  # not NULL, whose magnitude overflows
            part[beyond] = NULL
            self.bad += int(beyond.sum())
        self._parts.append(_compact(part))

    def _one(self, value: object) -> int:
        if value is None:
            return NULL
        if isinstance(value, str):
            number = number_in(value) if self._embedded else _number(value)
            if number is None:
                self.bad += not self._embedded
                return NULL
            value = number
        if isinstance(value, int | float) and value == value // 1:
            number = int(value)
            if -(2**63) < number < 2**63:
                return number
            if self._wrap and 0 <= number < 2**64:
                return number - 2**64
        self.bad += 1
        return NULL

    def series(self, name: str) -> pl.Series:
        """The column; gives up its storage."""
        array = self.array()
        series = pl.Series(name, array)
        null = array == NULL
        return series.set(pl.Series(null), None) if null.any() else series

    def array(self) -> np.ndarray:
        """The column as int64 with NULL for gaps; gives up its storage."""
        parts, self._parts = self._parts, []
        if not parts:
            return np.empty(0, np.int64)
        full = [np.full(p[1], p[0], np.int64) if isinstance(p, tuple) else p for p in parts]
        return np.concatenate(full, dtype=np.int64)


def _compact(part: np.ndarray) -> np.ndarray | tuple[int, int]:
    """Keep a constant as such and small numbers in 32 bits: most ids of a chunk are either."""
    low, high = int(part.min()), int(part.max())
    if low == high:
        return low, len(part)
    return part.astype(np.int32) if low >= -(2**31) and high < 2**31 else part


def number_in(value: object) -> int | None:
    """The first number in an id such as ``7``, ``"7"`` or ``"stream 7"``."""
    if isinstance(value, int):
        return value
    found = _NUMBER_IN.search(value) if isinstance(value, str) else None
    return None if found is None else int(found.group())


def _number(text: str) -> int | None:
    return int(text) if _NUMBER_IN.fullmatch(text.strip()) else None


class TimeColumn:
    """Nanoseconds already computed."""

    def __init__(self) -> None:
        self._parts: list[np.ndarray] = []

    def append(self, values: np.ndarray) -> None:
        """Append one chunk."""
        self._parts.append(values)

    def array(self) -> np.ndarray:
        """The column as int64; gives up its storage."""
        parts, self._parts = self._parts, []
        return np.concatenate(parts) if parts else np.empty(0, np.int64)


class TextColumn:
    """Strings, dictionary encoded. Raw JSON values are kept as their text."""

    def __init__(self) -> None:
        self._codes: dict[Any, int] = {}
        self._parts: list[np.ndarray | int] = []

    def extend(self, values: Sequence[Any]) -> None:
        """Append one value a row; other types than text become their JSON text, None stays null."""
        missing = values.count(None)
        if missing == len(values):
            self._parts.append(missing)
            return
        plain = set(map(type, values)) <= {str, type(None)}
        self._parts.append(self._encode(values if plain else [as_text(v) for v in values]))

    def extend_raw(self, values: Sequence[msgspec.Raw | None]) -> None:
        """Append raw JSON values."""
        missing = values.count(None)
        if missing == len(values):
            self._parts.append(missing)
        else:
            self._parts.append(self._encode([None if v is None else bytes(v) for v in values]))

    def _encode(self, values: Sequence[Any]) -> np.ndarray:
        codes = self._codes
        for value in set(values):
            if value not in codes:
                codes[value] = -1 if value is None else len(codes)
        return np.fromiter(map(codes.__getitem__, values), np.int32, len(values))

    def series(self, name: str) -> pl.Series:
        """The column as an Enum of its distinct values; gives up its storage."""
        parts = [np.full(p, -1, np.int32) if isinstance(p, int) else p for p in self._parts]
        self._parts = []
        array = np.concatenate(parts) if parts else np.empty(0, np.int32)
        return encoded(name, array, [_text(v) for v in self._codes])


def encoded(name: str, codes: np.ndarray, values: Sequence[str | None]) -> pl.Series:
    """An Enum series from dictionary codes; negative codes are null.

    ``values[code]`` is the text; two codes may mean the same text.
    """
    categories = list(dict.fromkeys(v for v in values if v is not None))
    place = {v: i for i, v in enumerate(categories)}
    remap = np.array([-1 if v is None else place[v] for v in values] or [-1], np.int32)
    rows = pl.Series(np.where(codes < 0, np.int32(-1), remap[codes]))
    if (rows < 0).any():
        rows = rows.set(rows < 0, None)
    return pl.Series(name, categories, dtype=pl.Enum(categories)).gather(rows)


def as_text(value: object) -> str | None:
    """Text as it is, other values as JSON, None as None."""
    if value is None or isinstance(value, str):
        return value
    return msgspec.json.encode(value).decode()


def _text(value: object) -> str | None:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value  # type: ignore[return-value]
