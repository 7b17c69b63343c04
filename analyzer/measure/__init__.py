"""From labelled intervals to the figures rules and reports read.

``measure_job`` is imported on first use: rules and reports only need the types in
:mod:`analyzer.measure.results`, which stay light.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from analyzer.measure.job import measure_job

__all__ = ["measure_job"]


def __getattr__(name: str) -> Any:
    if name == "measure_job":
        from analyzer.measure.job import measure_job

        return measure_job
    message = f"module 'analyzer.measure' has no attribute {name!r}"
    raise AttributeError(message)
