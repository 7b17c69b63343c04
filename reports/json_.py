"""The result document as JSON text, and the JSON Schema it satisfies."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from importlib.resources import files
from typing import Any


def render_json(document: Mapping[str, Any]) -> str:
    """The document as JSON text ending in a newline; equal documents give equal text.

    Key order is the document's own: it is fixed where the document is built, in the order a reader
    wants it. Objects are indented, lists of plain values stay on one line. NaN and infinities raise
    ``ValueError``, since JSON has none.
    """
    return "".join(_lines(document, "\n")) + "\n"


def compact_json(value: object) -> str:
    """JSON without white space, for data that only programs read."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def schema_text() -> str:
    """The JSON Schema (draft 2020-12) of result documents, as published with the package."""
    schema = files("reports") / "schema" / "analysis-1.json"
    return schema.read_text(encoding="utf-8")


def _lines(value: Any, newline: str) -> Iterator[str]:
    is_object = isinstance(value, Mapping)
    nested = isinstance(value, list | tuple) and any(isinstance(v, list | dict) for v in value)
    if not value or not (is_object or nested):
        yield json.dumps(value, ensure_ascii=False, allow_nan=False)
        return
    inner = newline + "  "
    yield "{" if is_object else "["
    items = value.items() if is_object else ((None, v) for v in value)
    for position, (key, item) in enumerate(items):
        yield ("," if position else "") + inner
        if is_object:
            yield json.dumps(key, ensure_ascii=False) + ": "
        yield from _lines(item, inner)
    yield newline + ("}" if is_object else "]")
