"""Reading one JSON object that is not valid JSON.

Kineto wrote unescaped quotes into event names (fixed 2026-07), lone backslashes and control
characters (fixed 2024-03), ``N/A`` and ``nan`` for numbers, and names without quotes. Only objects
that the strict decoder rejected come here, so speed matters less than keeping what is legible:
a value that cannot be read is dropped, its neighbours are not.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any

EVENT_KEYS = (
    "ph", "cat", "name", "pid", "tid", "ts", "dur", "id", "args", "bp", "s", "tts", "tdur",
    "cname", "sf", "scope", "bind_id", "flow_in", "flow_out",
)  # fmt: skip

_MAX_DEPTH = 8
_SPACE = re.compile(r"[\s,]*")
_KEY = re.compile(r'"([^"\\\n]{1,200})"\s*:\s*')
_NEXT_KEY = re.compile(r',\s*(?="[^"\\\n]{1,200}"\s*:)')
_STRING_END = re.compile(r'"\s*(?=,\s*"[^"\\\n]{1,200}"\s*:|\})')
_EVENT_STRING_END = re.compile(r'"\s*(?=,\s*"(?:' + "|".join(EVENT_KEYS) + r')"\s*:)')
_ARRAY_END = re.compile(r"\]\s*(?=[,}]|$)")
_BARE_END = re.compile(r"[,}\]\n]|$")
_MISSING = re.compile(r"[+-]?(nan(\(.*\))?|inf(inity)?|n/a|null|none|undefined)$", re.IGNORECASE)
_NUMBER = re.compile(r"-?\d+(\.\d*)?([eE][+-]?\d+)?$")
_ESCAPE = re.compile(r'\\(u[0-9a-fA-F]{4}|["\\/bfnrt])|\\')
# a pair stays as it is; a half of one is no character
_SURROGATE = re.compile(
    r"(\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})|\\u[dD][89a-fA-F][0-9a-fA-F]{2}"
)


def _finite(text: str) -> float | None:
    number = float(text)
    return number if math.isfinite(number) else None


_DECODER = json.JSONDecoder(strict=False, parse_float=_finite, parse_constant=lambda _: None)


def repair_object(text: str, *, event: bool = True) -> tuple[dict[str, Any], int]:
    """Read the object that begins at the first ``{`` of ``text`` as well as possible.

    Args:
        text: the object and whatever follows it.
        event: its keys are those of a trace event, which tells where a broken string ends.

    Returns:
        The fields that could be read (times as text, so that no digit is lost), and the offset
        behind the object.
    """
    text = _SURROGATE.sub(lambda m: m.group(1) or "\\ufffd", text)
    start = text.find("{")
    if start < 0:
        return {}, len(text)
    return _Scanner(text, event=event).object(start, 0)


def unescape(raw: str) -> str:
    """Resolve the escapes of a string; one that has invalid escapes is taken literally."""
    if any(m.group() == "\\" for m in _ESCAPE.finditer(raw)):
        return raw.replace('\\"', '"')
    try:
        return str(
            json.loads('"' + re.sub(r'(?<!\\)((?:\\\\)*)"', r'\1\\"', raw) + '"', strict=False)
        )
    except ValueError:
        return raw


class _Scanner:
    """A forgiving recursive-descent reader over one text."""

    def __init__(self, text: str, *, event: bool) -> None:
        self.text = text
        self.event = event

    def object(self, at: int, depth: int) -> tuple[dict[str, Any], int]:
        text, at = self.text, at + 1
        fields: dict[str, Any] = {}
        while True:
            at = self._skip(at)
            if at >= len(text):
                return fields, at
            if text[at] == "}":
                return fields, at + 1
            key = _KEY.match(text, at)
            if key is None:
                following = _NEXT_KEY.search(text, at)
                if following is None:
                    end = text.rfind("}", at)
                    return fields, len(text) if end < 0 else end + 1
                at = following.end()
                continue
            name = key.group(1)
            if self.event and depth == 0 and name in ("ts", "dur"):
                fields[name], at = self._time(key.end(), depth)
            else:
                fields[name], at = self._value(key.end(), depth)

    def _skip(self, at: int) -> int:
        match = _SPACE.match(self.text, at)
        return at if match is None else match.end()

    def _time(self, at: int, depth: int) -> tuple[Any, int]:
        end = self._search(_BARE_END, at)
        token = self.text[at:end].strip()
        return (token, end) if _NUMBER.match(token) else self._value(at, depth)

    def _value(self, at: int, depth: int) -> tuple[Any, int]:
        text = self.text
        try:
            value, end = _DECODER.raw_decode(text, at)
        except (ValueError, RecursionError):
            pass
        else:
            if text[end : end + 64].lstrip()[:1] in (",", "}", "]", ""):
                return value, end
        opening = text[at : at + 1]
        if opening == '"':
            return self._string(at, depth)
        if opening == "{":
            if depth < _MAX_DEPTH:
                return self.object(at, depth + 1)
            return None, self._search(_NEXT_KEY, at)
        if opening == "[":
            end = self._search(_ARRAY_END, at)
            return None, end + (text[end : end + 1] == "]")
        return self._bare(at)

    def _string(self, at: int, depth: int) -> tuple[str, int]:
        end = None
        if self.event and depth == 0:
            end = _EVENT_STRING_END.search(self.text, at + 1)
        end = end or _STRING_END.search(self.text, at + 1)
        if end is None:
            return unescape(self.text[at + 1 :]), len(self.text)
        return unescape(self.text[at + 1 : end.start()]), end.end()

    def _bare(self, at: int) -> tuple[Any, int]:
        end = self._search(_BARE_END, at)
        token = self.text[at:end].strip()
        if not token or _MISSING.match(token):
            return None, end
        return token, end

    def _search(self, pattern: re.Pattern[str], at: int) -> int:
        match = pattern.search(self.text, at)
        return len(self.text) if match is None else match.start()
