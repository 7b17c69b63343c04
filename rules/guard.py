"""The one place that catches everything: code of a rule or plugin must not stop the run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Failure:
    """What went wrong, in one line."""

    message: str


def attempt(action: Callable[[], T]) -> T | Failure:
    """Call ``action``; return what it returns, or a :class:`Failure` naming what it raised."""
    try:
        return action()
    except Exception as error:  # noqa: BLE001 - a defect in one rule must not take the others' findings
        text = " ".join(str(error).split())
        return Failure(f"{type(error).__name__}: {text}" if text else type(error).__name__)
