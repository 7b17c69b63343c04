"""Ranks compared with each other: matched collectives, clocks, who waits for whom, link rates."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from analyzer.crossrank.compare import compare_ranks

__all__ = ["compare_ranks"]


def __getattr__(name: str) -> Any:
    if name == "compare_ranks":
        from analyzer.crossrank.compare import compare_ranks

        return compare_ranks
    message = f"module 'analyzer.crossrank' has no attribute {name!r}"
    raise AttributeError(message)
