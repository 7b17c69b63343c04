"""The parts of a trace file around its events: where ``traceEvents`` begins, and the metadata.

Metadata stands before and behind the events, may itself hold a key ``traceEvents``, and is invalid
JSON where Kineto pasted a log line with quotes into it.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from analyzer.errors import InputError, NotATraceError
from collectors.kineto.repair import repair_object

MAX_METADATA_BYTES = 256 << 20

_TRACE_EVENTS = re.compile(rb'"traceEvents"\s*:\s*(?=\[)')
_EVENT_FOLLOWS = re.compile(rb'\[\s*(?:\]|\{\s*"(?:ph|cat|name|pid|tid|ts|dur|args|id)")')
_STRUCTURE = re.compile(rb'"(?:[^"\\]|\\.)*"|[{}\[\]]')

# What else is called .json: a pattern near the beginning -> what the file is.
_ET = "a PyTorch execution trace, which has no times"
_FOREIGN: tuple[tuple[bytes, str], ...] = (
    (rb'"rocprofiler-sdk-tool"', "rocprofiler JSON (profile with torch.profiler or convert it)"),
    (rb'"schema"\s*:\s*"[^"]*".{0,400}"nodes"\s*:', _ET),
    (rb'"nodes"\s*:\s*\[.{0,2000}"ctrl_deps"', _ET),
    (rb'"entries".{0,4000}"collective_seq_id"|"pg_status"', "a flight recorder dump"),
    (rb'"pg_config".{0,4000}"entries"', "a flight recorder dump"),
    (rb'"hloModule"|"byProgram"|"byCategory"|"hloInfoMap"', "a page of an XLA profile"),
    (rb'"memoryProfilePerAllocator"', "an XLA memory profile"),
    (rb'"device_traces"|"segments"\s*:\s*\[', "a CUDA memory snapshot"),
    (rb'"cols"\s*:\s*\[', "a data table (xprof page)"),
)
_FOREIGN_PATTERNS = tuple((re.compile(p, re.DOTALL), kind) for p, kind in _FOREIGN)


def foreign_kind(start: bytes) -> str:
    """What a JSON file that is no trace looks like, from its first bytes; empty when unknown."""
    head = start[: 1 << 16]
    for pattern, kind in _FOREIGN_PATTERNS:
        if pattern.search(head):
            return kind
    return ""


def find_events(buffer: bytearray, after: int = 0) -> tuple[int, dict[str, Any]] | None:
    """Find the ``[`` of the top-level ``traceEvents`` array and read the metadata before it.

    Decoding the text before it as a closed object proves that the key is not a nested one; for
    invalid metadata brackets are counted instead.

    Args:
        buffer: the beginning of the document.
        after: offset from which candidates are looked for.

    Returns:
        The offset of the bracket and the metadata, or None while there is none.
    """
    for match in _TRACE_EVENTS.finditer(buffer, after):
        before = bytes(buffer[: match.start()])
        try:
            head = msgspec.json.decode(before + b'"traceEvents":0}')
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            if not _top_level(before) or not _EVENT_FOLLOWS.match(buffer, match.end()):
                continue
            head, _ = repair_object(before.decode("utf-8", "replace"), event=False)
        head.pop("traceEvents", None)
        return match.end(), head
    return None


def _top_level(before: bytes) -> bool:
    depth = 0
    for token in _STRUCTURE.findall(before):
        depth += (token in (b"{", b"[")) - (token in (b"}", b"]"))
    return depth == 1


def read_tail(tail: bytes) -> tuple[dict[str, Any], bool, bool]:
    """Read the metadata behind the events.

    Returns:
        The metadata, whether the document ends too early, and whether more follows its end.
    """
    text = b'{"_":0' + tail.lstrip()
    try:
        fields, cut, more = msgspec.json.decode(text), False, False
    except msgspec.DecodeError:
        legible = text.decode("utf-8", "replace")
        fields, end = repair_object(legible, event=False)
        more = bool(legible[end:].strip())
        cut = not more and not legible.rstrip().endswith("}")
    except RecursionError:
        fields, cut, more = {}, False, False
    fields.pop("_", None)
    return fields, cut, more


def not_a_trace(label: str, start: bytes, *, complete: bool) -> InputError:
    """The error for JSON (or not even that) without trace events."""
    text = start.removeprefix(b"\xef\xbb\xbf").lstrip()
    if not text:
        return InputError(f"{label}: the file is empty")
    if text[:1] not in (b"{", b"["):
        if re.search(rb"/(device|host):|hlo_proto|xla", text[:4096]):
            return NotATraceError(f"{label}: not JSON but an XLA profile (protobuf)")
        return InputError(f"{label}: not JSON")
    if kind := foreign_kind(text):
        return NotATraceError(f"{label}: not a Kineto or Chrome trace but {kind}")
    if re.match(rb"\[\s*\[\s*-?\d", text):
        return NotATraceError(f"{label}: not a Kineto or Chrome trace but a memory timeline")
    if not complete:
        return InputError(f"{label}: no traceEvents in the first {MAX_METADATA_BYTES >> 20} MB")
    try:
        msgspec.json.decode(start, type=msgspec.Raw)
    except msgspec.DecodeError:
        return InputError(f"{label}: not a trace: broken JSON without a traceEvents array")
    except RecursionError:
        return InputError(f"{label}: not a trace: nested too deeply")
    keys = re.findall(rb'"([^"\\]{1,40})"\s*:', text[:4096])[:3]
    names = ", ".join(k.decode("utf-8", "replace") for k in keys)
    seen = f" (its keys: {names}, ...)" if names else ""
    return NotATraceError(f"{label}: JSON, but not a Kineto or Chrome trace: no traceEvents{seen}")
