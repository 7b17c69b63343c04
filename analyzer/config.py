"""Configuration of a repository: ``analyze.toml``, or ``[tool.meshscope]`` in ``pyproject.toml``.

Values keep the spelling the command line takes, so that a flag and a key are parsed by the same
code. Rules' options are checked where rules are known (:func:`rules.settings.validate`).
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from analyzer.errors import ConfigError
from analyzer.model import Severity

FILE_NAME = "analyze.toml"
PYPROJECT = "pyproject.toml"
TOTAL = "total"
"""Key of ``max_exposed_comm`` that limits all axes together."""

_PERCENT = re.compile(r"(\d+(?:\.\d+)?)\s*%")
_AXIS = re.compile(r"[a-z_]+(?:\+[a-z_]+)*")


@dataclass(frozen=True, slots=True)
class Config:
    """Expectations and limits of one repository; every field's default means "not set"."""

    path: Path | None = None
    expect: str | None = None
    mesh: str | None = None
    max_exposed_comm: tuple[str, ...] = ()
    max_bubble: str | None = None
    gate: tuple[str, ...] = ()
    fail_on: str | None = None
    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    rules: Mapping[str, Mapping[str, object]] = field(default_factory=dict)

    @property
    def source(self) -> str:
        """The file, for error messages."""
        return "configuration" if self.path is None else str(self.path)


GATE_KEYS = ("max_exposed_comm", "max_bubble", "gate", "fail_on")
TOP_KEYS = (*(f.name for f in fields(Config) if f.name not in ("path", *GATE_KEYS)), "gates")


def load_config(start: Path, explicit: Path | None = None) -> Config:
    """The configuration that holds at ``start``.

    Args:
        start: where the search begins; each directory from here to the root is looked at, and in
            it ``analyze.toml`` before a ``pyproject.toml`` that has ``[tool.meshscope]``.
        explicit: this file and no search.

    Returns:
        The first configuration found, or an empty one.

    Raises:
        ConfigError: unreadable file, unknown key or bad value, naming the file and the key.
    """
    if explicit is not None:
        table = _read(explicit)
        return _parse(explicit, table)
    for directory in (start.resolve(), *start.resolve().parents):
        for path in (directory / FILE_NAME, directory / PYPROJECT):
            table = _read(path) if path.is_file() else None
            if table is not None:
                return _parse(path, table)
    return Config()


def _read(path: Path) -> Mapping[str, Any] | None:
    """The configuration table of one file; None for a ``pyproject.toml`` without one."""
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        message = f"{path}: cannot be read: {error.strerror}"
        raise ConfigError(message) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        message = f"{path}: is not TOML: {error}"
        raise ConfigError(message) from None
    if path.name != PYPROJECT:
        return document
    tool = document.get("tool")
    table = tool.get("meshscope") if isinstance(tool, dict) else None
    return _table(path, "tool.meshscope", table) if table is not None else None


def _parse(path: Path, table: Mapping[str, Any] | None) -> Config:
    if table is None:
        message = f"{path}: has no [tool.meshscope]"
        raise ConfigError(message)
    _known(path, "", table, TOP_KEYS)
    gates = _table(path, "gates", table.get("gates", {}))
    _known(path, "gates.", gates, GATE_KEYS)
    rules = _table(path, "rules", table.get("rules", {}))
    return Config(
        path=path,
        expect=_text(path, "expect", table.get("expect")),
        mesh=_mesh(path, table.get("mesh")),
        max_exposed_comm=_exposed(path, gates.get("max_exposed_comm")),
        max_bubble=_percent(path, "gates.max_bubble", gates.get("max_bubble")),
        gate=_texts(path, "gates.gate", gates.get("gate", ())),
        fail_on=_severity(path, gates.get("fail_on")),
        select=_texts(path, "select", table.get("select", ())),
        ignore=_texts(path, "ignore", table.get("ignore", ())),
        rules={name: _table(path, f"rules.{name}", options) for name, options in rules.items()},
    )


def _known(path: Path, prefix: str, table: Mapping[str, Any], known: Sequence[str]) -> None:
    for key in table:
        if key not in known:
            close = get_close_matches(key, known, n=1, cutoff=0.5)
            hint = f"did you mean {prefix + close[0]!r}?" if close else "known: " + ", ".join(known)
            message = f"{path}: unknown key {prefix + key!r}"
            raise ConfigError(message, hint)


def _bad(path: Path, key: str, value: object, must: str) -> ConfigError:
    return ConfigError(f"{path}: {key} = {value!r}", must)


def _table(path: Path, key: str, value: object) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise _bad(path, key, value, "must be a table")
    return value


def _text(path: Path, key: str, value: object) -> str | None:
    if value is None or isinstance(value, str):
        return value
    raise _bad(path, key, value, "must be a string")


def _texts(path: Path, key: str, value: object) -> tuple[str, ...]:
    """A string or an array of strings."""
    items = [value] if isinstance(value, str) else value
    if not isinstance(items, (list, tuple)) or not all(isinstance(item, str) for item in items):
        raise _bad(path, key, value, "must be a string or an array of strings")
    return tuple(items)


def _mesh(path: Path, value: object) -> str | None:
    """``"pp=2,tp=4"`` or a table ``{pp = 2, tp = 4}``, outermost axis first."""
    if not isinstance(value, dict):
        return _text(path, "mesh", value)
    for axis, degree in value.items():
        if type(degree) is not int or degree < 1:
            raise _bad(path, f"mesh.{axis}", degree, "must be a whole number from 1 on")
    return ",".join(f"{axis}={degree}" for axis, degree in value.items())


def _exposed(path: Path, value: object) -> tuple[str, ...]:
    """One limit for the whole step, or a table of limits by axis (and ``total``)."""
    key = "gates.max_exposed_comm"
    if value is None:
        return ()
    limits = value if isinstance(value, dict) else {TOTAL: value}
    texts = []
    for axis, limit in limits.items():
        if not _AXIS.fullmatch(axis):
            raise _bad(path, f"{key}.{axis}", limit, "is not the name of an axis")
        text = _percent(path, f"{key}.{axis}" if isinstance(value, dict) else key, limit)
        texts.append(f"{text}" if axis == TOTAL else f"{axis}={text}")
    return tuple(texts)


def _percent(path: Path, key: str, value: object) -> str | None:
    """``"15%"``. A bare number is refused: 0.15 could mean 15 % or 0.15 %."""
    if value is None:
        return None
    match = _PERCENT.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        raise _bad(path, key, value, 'must be a percentage such as "15%"')
    return f"{match.group(1)}%"


def _severity(path: Path, value: object) -> str | None:
    levels = [severity.value for severity in Severity]
    if value is not None and value not in levels:
        raise _bad(path, "gates.fail_on", value, "must be one of " + ", ".join(levels))
    return _text(path, "gates.fail_on", value)
