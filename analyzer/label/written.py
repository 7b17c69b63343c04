"""Lists that traces carry as text. A damaged trace must cost an argument, never the analysis."""

from __future__ import annotations

import json
from typing import Any


def written_list(text: object) -> list[Any]:
    """The JSON list in ``text``; empty when it is none, broken or cut with ``...``."""
    if not isinstance(text, str):
        return []
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return []
    return value if isinstance(value, list) else []


def written_integers(text: object) -> list[int]:
    """The integers listed in ``text``; empty when anything in it is no integer."""
    parts = written_list(text)
    return parts if all(type(part) is int for part in parts) else []
