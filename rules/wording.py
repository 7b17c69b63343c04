"""Numbers as they stand in titles and advice."""

from __future__ import annotations


def ms(ns: float) -> str:
    """A duration in milliseconds with about three significant digits."""
    value = ns / 1e6
    digits = 0 if value >= 100 else 1 if value >= 10 else 2 if value >= 1 else 3
    return f"{value:.{digits}f} ms"


def pct(value: float) -> str:
    """A share."""
    return f"{value:.1f} %"


def size(n_bytes: float) -> str:
    """A message size in binary units."""
    for unit in ("B", "KiB", "MiB"):
        if n_bytes < 1024:
            return f"{n_bytes:.0f} {unit}" if n_bytes >= 10 else f"{n_bytes:.1f} {unit}"
        n_bytes /= 1024
    return f"{n_bytes:.1f} GiB"
