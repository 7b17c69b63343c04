"""Checks the ``[rules.*]`` tables of a configuration against the options each rule declares."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, get_type_hints

from analyzer.errors import ConfigError
from rules.registry import Registry, load
from rules.spec import AnyRule

LEVELS = ("off", "warn", "error")
"""off: not run. warn: an error counts as a warning. error: a warning counts as an error."""


@dataclass(frozen=True, slots=True)
class RuleSettings:
    """Options and level by rule code, ready for :func:`rules.runner.run`."""

    options: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    levels: Mapping[str, str] = field(default_factory=dict)


def validate(
    tables: Mapping[str, Mapping[str, object]],
    *,
    select: Iterable[str] = (),
    ignore: Iterable[str] = (),
    source: str = "configuration",
    registry: Registry | None = None,
) -> RuleSettings:
    """Turn configuration into settings, or say what is wrong with it.

    Args:
        tables: rule code or name -> options, and ``level``.
        select: when not empty, only these rules run. A code prefix such as ``COM`` names a family.
        ignore: rules that do not run; wins over ``select``.
        source: file named in errors.
        registry: rules to check against; all installed ones by default.

    Raises:
        ConfigError: unknown rule, option or level, or a value of the wrong type.
    """
    registry = registry or load()
    options: dict[str, Mapping[str, object]] = {}
    levels: dict[str, str] = {}
    for key, table in tables.items():
        rule = _find(registry, key, source)
        values = dict(table)
        level = values.pop("level", None)
        if level is not None:
            levels[rule.code] = _level(level, key, source)
        build_options(rule, values, source)
        options[rule.code] = {**options.get(rule.code, {}), **values}
    chosen = {code for key in select for code in _family(registry, key, source)}
    ignored = {code for key in ignore for code in _family(registry, key, source)}
    for rule in registry.rules:
        if rule.code in ignored or (chosen and rule.code not in chosen):
            levels[rule.code] = "off"
    return RuleSettings(options, levels)


def build_options(rule: AnyRule, values: Mapping[str, object], source: str) -> Any:
    """The rule's options, ``values`` over the defaults; ``ConfigError`` when they misfit."""
    hints = get_type_hints(rule.options)
    known = [f.name for f in dataclasses.fields(rule.options)]
    for name, value in values.items():
        if name not in known:
            message = f"{source}: rule {rule.name} has no option {name!r}"
            raise ConfigError(message, _nearest(name, [*known, "level"]))
        _check_type(rule, name, value, hints[name], source)
    return rule.options(**values)


def _check_type(rule: AnyRule, name: str, value: object, kind: type, source: str) -> None:
    fits = isinstance(value, (int, float) if kind is float else kind)
    if isinstance(value, bool) and kind is not bool:
        fits = False
    if not fits:
        message = f"{source}: rules.{rule.name}.{name} = {value!r}"
        raise ConfigError(message, f"must be a {kind.__name__}")
    if isinstance(value, (int, float)) and not value >= 0:
        message = f"{source}: rules.{rule.name}.{name} = {value!r}"
        raise ConfigError(message, "must not be negative")


def _level(level: object, key: str, source: str) -> str:
    if not isinstance(level, str) or level not in LEVELS:
        message = f"{source}: rules.{key}.level = {level!r}"
        raise ConfigError(message, "one of " + ", ".join(LEVELS))
    return level


def _find(registry: Registry, key: str, source: str) -> AnyRule:
    rule = registry.find(key)
    if rule is None:
        known = [word for r in registry.rules for word in (r.name, r.code)]
        message = f"{source}: no rule {key!r}"
        raise ConfigError(message, _nearest(key, known))
    return rule


def _family(registry: Registry, key: str, source: str) -> list[str]:
    """Codes that ``key`` names: a code, a name, or the letters all codes of a family start with."""
    family = [
        r.code for r in registry.rules if key.isalpha() and r.code.rstrip("0123456789") == key
    ]
    return family or [_find(registry, key, source).code]


def _nearest(word: str, known: list[str]) -> str:
    close = get_close_matches(word, known, n=1, cutoff=0.5)
    return f"did you mean {close[0]!r}?" if close else "known: " + ", ".join(known)
