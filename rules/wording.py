"""Numbers as they stand in titles and advice."""

from __future__ import annotations

from collections.abc import Sequence


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


def listed_ranks(ranks: Sequence[int], shown: int = 4) -> str:
    """``Rank 3``, ``Ranks 1, 3 and 5``, ``Ranks 0, 1, 2, 3 and 12 more``."""
    if len(ranks) == 1:
        return f"Rank {ranks[0]}"
    names = [str(rank) for rank in ranks[:shown]]
    if len(ranks) > shown:
        return f"Ranks {', '.join(names)} and {len(ranks) - shown} more"
    return f"Ranks {', '.join(names[:-1])} and {names[-1]}"
