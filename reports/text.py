"""Numbers and foreign text as people read them. Pure functions, shared by all renderers."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence

NONE = "–"
"""Stands for a figure that is not known; its reason is given elsewhere in the report."""

_NS_UNITS = ((1e9, "s"), (1e6, "ms"), (1e3, "us"), (1, "ns"))
_BYTE_UNITS = ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"), (1, "B"))

_UNIT = re.compile(r"(?<=\d) (?=(?:%|[num]?s|[KMGT]?i?B)(?!\w))")


def visible(text: str) -> str:
    r"""Foreign text with every character that could act on a screen made visible.

    Names come from traces: control characters could drive a terminal, and Unicode's format
    characters (category Cf: bidirectional overrides, zero-width ones) could make one name look like
    another. Both are written as ``\x1b`` or ``\u202e``; everything else stays.
    """
    if text.isprintable():
        return text
    return "".join(
        char if not unicodedata.category(char).startswith(("C", "Zl", "Zp")) else _escaped(char)
        for char in text
    )


def _escaped(char: str) -> str:
    code = ord(char)
    return (
        f"\\x{code:02x}"
        if code < 0x100
        else f"\\u{code:04x}"
        if code < 0x10000
        else f"\\U{code:08x}"
    )


def shorten(text: str, width: int) -> str:
    """``text`` in at most ``width`` characters, cut in the middle: names differ at the end."""
    if len(text) <= width:
        return text
    head = (width - 1) * 2 // 3
    tail = width - 1 - head
    return f"{text[:head]}…{text[len(text) - tail :]}"


def duration(ns: float | None) -> str:
    """A time in the unit that suits it, three significant digits: ``4.19 ms``, ``812 us``."""
    if ns is None:
        return NONE
    for scale, unit in _NS_UNITS:
        if abs(ns) >= scale or scale == 1:
            return f"{_three(ns / scale)} {unit}"
    raise AssertionError


def _three(value: float) -> str:
    """Three significant digits; whole numbers without decimals."""
    digits = 0 if abs(value) >= 100 or value == int(value) else 1 if abs(value) >= 10 else 2
    return f"{value:,.{digits}f}"


class Milliseconds:
    """Formats a column of nanoseconds as milliseconds with one number of decimals, so it aligns."""

    def __init__(self, values: Iterable[float | None]) -> None:
        largest = max((abs(v) for v in values if v is not None), default=0) / 1e6
        self.decimals = (
            0 if largest >= 10_000 else 1 if largest >= 1_000 else 2 if largest >= 10 else 3
        )

    def __call__(self, ns: float | None) -> str:
        """One value of the column, without its unit. What is not zero never reads as zero."""
        if ns is None:
            return NONE
        smallest = 10.0**-self.decimals
        if 0 < ns / 1e6 < smallest / 2:
            return f"<{smallest:.{self.decimals}f}"
        return f"{ns / 1e6:,.{self.decimals}f}"


def percent(value: float | None) -> str:
    """A share: ``17.5 %``. What is not zero never reads 0.0."""
    if value is None:
        return NONE
    if 0 < value < 0.05:
        return "<0.1 %"
    return f"{value:.1f} %"


def share(part: float | None, whole: float | None) -> float | None:
    """100 x part / whole, None when either is unknown or the whole is 0."""
    return None if part is None or not whole else 100.0 * part / whole


def size(count: float | None) -> str:
    """Bytes with a binary unit: ``352 MiB``."""
    if count is None:
        return NONE
    for scale, unit in _BYTE_UNITS:
        if count >= scale or scale == 1:
            return f"{_three(count / scale)} {unit}"
    raise AssertionError


def rate(gbps: float | None) -> str:
    """A bandwidth in GB/s, three significant digits; what is not zero never reads 0."""
    if gbps is None:
        return NONE
    return "<0.01" if 0 < gbps < 0.005 else _three(gbps)


def number(value: float | None) -> str:
    """A count or mean of counts: ``17``, ``12.5``, ``1,204``."""
    if value is None:
        return NONE
    return f"{value:,.0f}" if float(value).is_integer() or abs(value) >= 1000 else f"{value:,.1f}"


def quantity(value: float | None, unit: str) -> str:
    """A rule's figure in its own unit; times in ns and sizes in bytes are scaled."""
    if value is None:
        return NONE
    scaled = {"ns": duration, "%": percent, "bytes": size, "B": size}.get(unit)
    if scaled is not None:
        return scaled(value)
    return f"{number(value) if float(value).is_integer() else _three(value)} {unit}".rstrip()


def keep_units(shown: str) -> str:
    """Text with no-break spaces between numbers and their units, for running text on a page."""
    return _UNIT.sub("\u00a0", shown)


def ranks(members: Sequence[int]) -> str:
    """Sorted ranks as runs: ``0-3, 6``."""
    runs: list[list[int]] = []
    for member in sorted(set(members)):
        if runs and member == runs[-1][1] + 1:
            runs[-1][1] = member
        else:
            runs.append([member, member])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def ranks_phrase(members: Sequence[int], limit: int = 40) -> str:
    """``rank 3``, ``ranks 0-3, 6``; a long list is cut and counted."""
    text = ranks(members)
    if len(text) > limit:
        text = re.sub(r",[^,]*$", "", text[:limit]) + f", … ({len(set(members))} in all)"
    return f"rank{'' if len(set(members)) == 1 else 's'} {text}"


def words(name: str) -> str:
    """An identifier as words: ``host_bound`` -> ``host bound``."""
    return name.replace("_", " ")
