"""Events out of a byte stream, chunk by chunk, however broken the JSON is.

A chunk ends at an event boundary (``},{``) found by searching backwards. Such text may also occur
inside a string or a nested list, but JSON is read from left to right: if ``[`` up to the boundary
plus ``]`` decodes, the boundary was a real one. When a decode fails its message names the byte;
the events before it are decoded fast, only the broken one goes to :mod:`collectors.kineto.repair`,
and reading resumes behind it. Cost stays linear even when every event is broken.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from typing import Any

import msgspec

from collectors.kineto.document import (
    MAX_METADATA_BYTES,
    find_events,
    foreign_kind,
    not_a_trace,
    read_tail,
)
from collectors.kineto.events import EVENT, EVENTS, RAW_ITEMS, Event
from collectors.kineto.repair import EVENT_KEYS, repair_object
from collectors.kineto.window import Chunk, FaultError, Held, Window, fault_of

CHUNK_BYTES = 4 << 20
MAX_EVENT_BYTES = 256 << 20
_SNIFF_BYTES = 4096
_SMALL_BYTES = 1 << 16
_BOUNDARY_TRIES = 8

_KEYS = b"|".join(k.encode() for k in EVENT_KEYS)
_EVENT_BOUNDARY = re.compile(rb'\}\s*,\s*\{\s*"(?:' + _KEYS + rb')"')
_ANY_BOUNDARY = re.compile(rb"\}\s*,\s*\{")
_ARRAY_END = re.compile(rb'\}[\s,]*\]\s*(?=,\s*"[^"\\]{1,200}"\s*:|\}\s*(?:\Z|[,{"]))')
_DEEP = re.compile(rb'(?:[\[{]\s*(?:"[^"]{0,100}"\s*:\s*)?){200,}')
_HUGE_NUMBER = re.compile(rb"\d[eE]\+?\d{3}|\d{300}")


class EventStream:
    """The events of one document. Iterate first; metadata and counters are complete then.

    Attributes:
        metadata: top-level keys other than ``traceEvents``.
        dropped: what could not be read, reason -> count.
        repaired: what was invalid JSON and is used all the same, kind -> count.
        truncated: the document ends before its array (or object) does.
        notes: anything else worth telling.
    """

    def __init__(self, read: Callable[[], bytes], label: str) -> None:
        self._read = read
        self._label = label
        self._separator = b""
        self._is_object = True
        self._held = Held()
        self.metadata: dict[str, Any] = {}
        self.dropped: Counter[str] = Counter()
        self.repaired: Counter[str] = Counter()
        self.truncated = False
        self.notes: list[str] = []

    def __iter__(self) -> Iterator[Chunk]:
        """Yield chunks in file order.

        Raises:
            InputError: there is no event array.
        """
        window = Window(self._find_start())
        while not window.done:
            block = self._block()
            window.refill(block)
            yield from self._consume(window, final=not block)
            if len(window.buffer) > MAX_EVENT_BYTES:
                self.truncated = True
                self.dropped["event larger than 256 MB"] += 1
                break
        if self._held.items:
            yield self._held.release()

    # -- reading ------------------------------------------------------------------------------

    def _block(self) -> bytes:
        parts, size = [], 0
        while size < CHUNK_BYTES and (part := self._read()):
            parts.append(part)
            size += len(part)
        return b"".join(parts)

    def _find_start(self) -> bytearray:
        """Read up to the event array; returns what is read from its bracket on."""
        buffer = bytearray()
        while len(buffer) < _SNIFF_BYTES and (block := self._block()):
            buffer += block
        del buffer[: _content_start(buffer)]
        if buffer.startswith(b"["):
            self._is_object = False
            self._require_events_follow(buffer)
            return buffer
        searched = 0
        foreign = b'"traceEvents"' not in buffer and foreign_kind(bytes(buffer))
        while buffer.startswith(b"{") and not foreign:
            found = find_events(buffer, searched)
            if found is not None:
                at, self.metadata = found
                return buffer[at:]
            searched = max(0, len(buffer) - 64)
            if len(buffer) > MAX_METADATA_BYTES:
                raise not_a_trace(self._label, bytes(buffer), complete=False)
            block = self._block()
            if not block:
                break
            buffer += block
        raise not_a_trace(self._label, bytes(buffer), complete=True)

    def _require_events_follow(self, buffer: bytearray) -> None:
        following = bytes(buffer[:4096])
        if not re.match(rb'\[\s*(\{|$|\]|null|")', following) or foreign_kind(following):
            raise not_a_trace(self._label, following, complete=True)

    # -- decoding -----------------------------------------------------------------------------

    def _consume(self, window: Window, *, final: bool) -> Iterator[Chunk]:
        """Yield what the window holds; with ``final`` nothing follows it."""
        limit, misses = len(window.buffer), 0
        while not window.done:
            whole = final and limit == len(window.buffer)
            comma = None if whole else self._boundary(window.buffer, window.at, limit)
            if not whole and (comma is None or misses > _BOUNDARY_TRIES):
                if final:
                    yield from self._unclosed(window)
                return
            try:
                with window.closed(comma) as view:
                    yield Chunk(self._decode(view), view)
            except FaultError as fault:
                if fault.kind == "cut":
                    limit, misses = (limit - 1 if comma is None else comma), misses + 1
                    continue
                if fault.kind == "trailing":
                    yield from self._array_end(window, window.at + fault.at)
                    return
                before = window.at
                yield from self._salvage(window, window.at + fault.at, fault.message, final=final)
                if window.at == before and not window.done:
                    return  # the broken event goes on in the next block
                limit, misses = len(window.buffer), 0
                continue
            if comma is None:
                window.done = True
                self._finish(b"", closed=True)
            else:
                window.resume(comma)
                limit, misses = len(window.buffer), 0
                if not final:
                    return

    def _decode(self, view: memoryview) -> list[Any]:
        try:
            return EVENTS.decode(view)
        except RecursionError:
            deep = _DEEP.search(view)
            raise FaultError(
                "malformed", deep.start() if deep else 0, "nested too deeply"
            ) from None
        except msgspec.ValidationError:
            return self._one_by_one(view)  # valid JSON, but a number out of range
        except msgspec.DecodeError as error:
            if "UTF-8" in str(error):
                return self._one_by_one(view)
            raise fault_of(error) from None

    def _one_by_one(self, view: memoryview) -> list[Any]:
        try:
            raws = RAW_ITEMS.decode(view)
        except msgspec.ValidationError as error:
            huge = _HUGE_NUMBER.search(view)
            raise FaultError("malformed", huge.start() if huge else 0, str(error)) from None
        except msgspec.DecodeError as error:
            raise fault_of(error) from None
        items: list[Any] = []
        for raw in raws:
            try:
                items.append(EVENTS.decode(b"[" + bytes(raw) + b"]")[0])
            except msgspec.DecodeError as error:
                reason = "number out of range" if "range" in str(error) else "invalid UTF-8"
                items.append(self._repaired(bytes(raw), reason))  # None counts as no event
        return items

    def _repaired(self, text: bytes, reason: str) -> Event | None:
        """The event in a text that is not JSON; None when nothing of it can be read."""
        fields, _ = repair_object(text.decode("utf-8", "replace"))
        if not fields:
            return None
        try:
            event = EVENT.decode(json.dumps(fields).encode())
        except msgspec.DecodeError:
            return None
        self.repaired[reason] += 1
        return event

    # -- broken places ------------------------------------------------------------------------

    def _salvage(self, window: Window, at: int, message: str, *, final: bool) -> Iterator[Chunk]:
        """Yield the good events before offset ``at``, repair the one there and step behind it."""
        if "trailing comma in array" in message and (yield from self._trailing_comma(window, at)):
            return
        yield from self._good_prefix(window, at)
        buffer, begin = window.buffer, window.at + 1
        following = _EVENT_BOUNDARY.search(buffer, begin)
        end = _ARRAY_END.search(buffer, begin, following.end() if following else len(buffer))
        if following and end is None:
            stop, comma = following.start() + 1, buffer.index(b",", following.start())
        elif end and (final or len(buffer) - end.end() > 512):
            stop, comma = end.start() + 1, None
        elif final:
            if not buffer[begin:].rstrip(b" \r\n\t,]").endswith(b"}"):
                yield from self._unclosed(window)
                return
            stop, comma = buffer.rindex(b"}") + 1, None
        else:
            return
        reason = _reason(buffer, at, message)
        event = self._repaired(bytes(buffer[begin:stop]), reason)
        if event is None:
            self.dropped["unreadable event"] += 1
        else:
            yield from self._hold([event], b"null")
        if comma is not None:
            window.resume(comma)
            return
        window.done = True
        close = buffer.find(b"]", stop)
        self.truncated = self.truncated or close < 0
        self._finish(bytes(buffer[close + 1 :]) if close >= 0 else b"", closed=close >= 0)

    def _good_prefix(self, window: Window, at: int) -> Iterator[Chunk]:
        limit = at
        for _ in range(_BOUNDARY_TRIES):
            comma = self._boundary(window.buffer, window.at, limit)
            if comma is None:
                return
            try:
                with window.closed(comma) as view:
                    items = self._decode(view)
                    if len(view) < _SMALL_BYTES:
                        yield from self._hold(items, bytes(view[1:-1]))
                    else:
                        yield Chunk(items, view)
            except FaultError:
                limit = comma
                continue
            window.resume(comma)
            return

    def _hold(self, items: list[Any], text: bytes) -> Iterator[Chunk]:
        """Hand out small pieces between broken events together: a chunk has its costs."""
        if not items:
            return
        self._held.add(items, text)
        if self._held.size > CHUNK_BYTES:
            yield self._held.release()

    def _trailing_comma(self, window: Window, at: int) -> Generator[Chunk, None, bool]:
        """Close the array at a comma before its bracket; returns whether that worked."""
        comma = window.buffer.rfind(b",", window.at, at)
        try:
            with window.closed(comma) as view:
                yield Chunk(self._decode(view), view)
        except FaultError:
            return False
        self.repaired["trailing comma"] += 1
        window.done = True
        self._finish(bytes(window.buffer[at + 1 :]), closed=True)
        return True

    def _array_end(self, window: Window, at: int) -> Iterator[Chunk]:
        close = window.buffer.rfind(b"]", window.at, at)
        view = memoryview(window.buffer)[window.at : close + 1]
        yield Chunk(self._decode(view), view)
        window.done = True
        self._finish(bytes(window.buffer[close + 1 :]), closed=True)

    def _unclosed(self, window: Window) -> Iterator[Chunk]:
        """The document ends inside the array: keep a last complete event, drop a partial one."""
        self.truncated = True
        window.done = True
        rest = bytes(window.buffer[window.at + 1 :]).rstrip(b" \r\n\t,")
        if not rest:
            return
        text = memoryview(b"[" + rest + b"]")
        try:
            yield Chunk(self._decode(text), text)
        except FaultError:
            self.dropped["cut-off event"] += 1

    def _finish(self, tail: bytes, *, closed: bool) -> None:
        """Read whatever follows the array."""
        parts, size = [tail], len(tail)
        while size < MAX_METADATA_BYTES and (block := self._block()):
            parts.append(block)
            size += len(block)
        tail = b"".join(parts)
        if not closed:
            return
        more = bool(tail.strip())
        if self._is_object:
            fields, cut, more = read_tail(tail)
            self.metadata.update(fields)
            self.truncated = self.truncated or cut
        if more:
            self.notes.append("text behind the end of the JSON document is ignored")

    def _boundary(self, buffer: bytearray, start: int, limit: int) -> int | None:
        """Offset of the comma of the last event boundary in ``buffer[start:limit]``."""
        if self._separator:
            found = buffer.rfind(self._separator, start, limit)
            if found >= 0:
                return found + self._separator.index(b",")
        for pattern in (_EVENT_BOUNDARY, _ANY_BOUNDARY):
            for span in (1 << 16, 1 << 20, limit):
                matches = list(pattern.finditer(buffer, max(start, limit - span), limit))
                if matches:
                    if pattern is _EVENT_BOUNDARY:
                        self._separator = matches[-1].group()
                    return buffer.index(b",", matches[-1].start())
        return None


def _content_start(buffer: bytearray) -> int:
    start = 3 if buffer.startswith(b"\xef\xbb\xbf") else 0
    return len(buffer) - len(buffer[start:].lstrip())


def _reason(buffer: bytearray, at: int, message: str) -> str:
    """Name what was wrong at a byte, for the report."""
    if "deep" in message:
        return "nested too deeply"
    if "range" in message:
        return "number out of range"
    if "escape" in message:
        return "invalid escape"
    if "trailing comma" in message:
        return "trailing comma"
    if buffer[at : at + 1] < b" ":
        return "control character"
    before = bytes(buffer[max(0, at - 64) : at]).rstrip()
    return "bare value" if before.endswith((b":", b"-")) else "unescaped quote"
