"""HTML and SVG elements that escape by construction.

Every string given to :func:`el` is escaped unless it is already :class:`Markup`, so text from a
trace can only ever be text. Control and bidirectional characters are made visible on the way.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from html import escape

from reports.text import visible

VOID = frozenset({"meta", "br", "input", "link"})


class Markup(str):
    """A string that is finished HTML."""

    __slots__ = ()


Attribute = str | int | float | bool | None
Child = str | int | None | Iterable["Child"]


def el(tag: str, *children: Child, **attributes: Attribute) -> Markup:
    """An element. ``class_`` and the like lose the underscore, others become dashes.

    Attributes that are None or False are left out, True ones stand alone. Children may be nested
    iterables; None is nothing.
    """
    head = tag + "".join(_attribute(name, value) for name, value in attributes.items())
    if tag in VOID:
        return Markup(f"<{head}>")
    return Markup(f"<{head}>{join(children)}</{tag}>")


def join(children: Iterable[Child]) -> Markup:
    """Children one after the other, escaped where they are not Markup."""
    return Markup("".join(map(_child, children)))


def _child(child: Child) -> str:
    if child is None:
        return ""
    if isinstance(child, Markup):
        return child
    if isinstance(child, str):
        return escape(visible(child))
    if isinstance(child, int):
        return str(child)
    return join(child)


def _attribute(name: str, value: Attribute) -> str:
    if value is None or value is False:
        return ""
    name = name.rstrip("_").replace("_", "-")
    if value is True:
        return f" {name}"
    text = f"{value:g}" if isinstance(value, float) else visible(str(value))
    return f' {name}="{escape(text)}"'


def json_block(value: object, **attributes: str) -> Markup:
    """JSON as a data block that no string inside it can end: pure ASCII without ``<>&``."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    for char in "<>&":
        text = text.replace(char, f"\\u{ord(char):04x}")
    head = "".join(_attribute(name, attribute) for name, attribute in attributes.items())
    return Markup(f'<script type="application/json"{head}>{text}</script>')
