"""The undecoded text between two reads, and what leaves it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import msgspec

_OFFSET = re.compile(r"\(byte (\d+)\)")


@dataclass(frozen=True, slots=True)
class Chunk:
    """Decoded array entries, and their JSON text (a list) for those who need its digits.

    Repaired events read ``null`` in the text; their times are text already. The text is valid until
    the next chunk is asked for.
    """

    items: list[Any]
    text: memoryview


class FaultError(Exception):
    """A decode failed: ``kind`` is cut, trailing or malformed; ``at`` an offset in the view."""

    def __init__(self, kind: str, at: int, message: str) -> None:
        super().__init__(message)
        self.kind, self.at, self.message = kind, at, message


def fault_of(error: msgspec.DecodeError) -> FaultError:
    """Read the place out of the decoder's message (its wording is pinned by a test)."""
    message = str(error)
    offset = _OFFSET.search(message)
    if offset is None:
        return FaultError("cut", 0, message)
    kind = "trailing" if "trailing characters" in message else "malformed"
    return FaultError(kind, int(offset.group(1)), message)


class Held:
    """Small pieces that wait to become one chunk."""

    def __init__(self) -> None:
        self.items: list[Any] = []
        self.size = 0
        self._texts: list[bytes] = []

    def add(self, items: list[Any], text: bytes) -> None:
        """Append entries and their JSON text, without brackets."""
        self.items += items
        self._texts.append(text)
        self.size += len(text) + 256 * len(items)

    def release(self) -> Chunk:
        """Everything held, as one chunk."""
        chunk = Chunk(self.items, memoryview(b"[" + b",".join(self._texts) + b"]"))
        self.items, self._texts, self.size = [], [], 0
        return chunk


class Window:
    """The undecoded part of the document; ``buffer[at]`` is the ``[`` a decode begins with."""

    def __init__(self, buffer: bytearray) -> None:
        self.buffer = buffer
        self.at = 0
        self.done = False

    def refill(self, block: bytes) -> None:
        """Forget what is decoded and append what was read."""
        self.buffer = self.buffer[self.at :] + block
        self.at = 0

    def resume(self, comma: int) -> None:
        """Go on behind an event: its comma becomes the opening bracket."""
        self.buffer[comma] = 0x5B
        self.at = comma

    def closed(self, comma: int | None) -> Closed:
        """A context in which the text up to ``comma`` is a JSON list."""
        return Closed(self, comma)


class Closed:
    """A view from the bracket to ``comma``, which reads ``]`` meanwhile; None: to the end."""

    def __init__(self, window: Window, comma: int | None) -> None:
        self._window, self._comma = window, comma

    def __enter__(self) -> memoryview:
        buffer = self._window.buffer
        end = len(buffer)
        if self._comma is not None:
            buffer[self._comma] = 0x5D
            end = self._comma + 1
        self._view = memoryview(buffer)[self._window.at : end]
        return self._view

    def __exit__(self, *_: object) -> None:
        if self._comma is not None:
            self._window.buffer[self._comma] = 0x2C
