"""Which rules there are: the catalogue, and plugins from the entry point group ``meshscope.rules``.

Nothing registers itself on import: the catalogue package is scanned, plugins are asked for.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points

from analyzer.errors import UsageError
from analyzer.model import Outcome, Verdict
from rules import catalog
from rules.guard import Failure, attempt
from rules.spec import AnyRule, Rule

ENTRY_POINT_GROUP = "meshscope.rules"


@dataclass(frozen=True, slots=True)
class Registry:
    """The rules to run, by code, and an error outcome for each plugin that could not be used."""

    rules: tuple[AnyRule, ...]
    broken: tuple[Outcome, ...] = ()

    def find(self, key: str) -> AnyRule | None:
        """The rule with this code or name."""
        return next((r for r in self.rules if key in (r.code, r.name)), None)


@cache
def built_in() -> tuple[AnyRule, ...]:
    """The rules of :mod:`rules.catalog`, by code."""
    names = sorted(m.name for m in pkgutil.iter_modules(catalog.__path__))
    found = [import_module(f"{catalog.__name__}.{name}").RULE for name in names]
    return tuple(sorted(found, key=lambda r: r.code))


def all_rules() -> tuple[AnyRule, ...]:
    """Every rule that can run, plugins included, by code."""
    return load().rules


def find_rule(key: str) -> AnyRule:
    """The rule with this code or name; ``UsageError`` with the nearest one when there is none."""
    registry = load()
    rule = registry.find(key) or registry.find(key.upper())
    if rule is None:
        known = [word for r in registry.rules for word in (r.code, r.name)]
        close = get_close_matches(key, known, n=1, cutoff=0.5)
        message = f"no rule {key!r}"
        raise UsageError(message, f"did you mean {close[0]!r}?" if close else "list: analyze rules")
    return rule


def load(*, plugins: bool = True) -> Registry:
    """All built-in rules and, unless switched off, those of installed plugins.

    A plugin is an entry point of group ``meshscope.rules`` that names a ``Rule``. One that cannot
    be imported, is no rule, or reuses a code or name becomes an ``error`` outcome.
    """
    points: Iterable[EntryPoint] = entry_points(group=ENTRY_POINT_GROUP) if plugins else ()
    rules = list(built_in())
    broken: list[Outcome] = []
    for point in sorted(points, key=lambda p: p.name):
        loaded = attempt(point.load)
        problem = _problem(loaded, rules)
        if isinstance(loaded, Rule) and not problem:
            rules.append(loaded)
        else:
            reason = f"plugin {point.value}: {problem}"
            broken.append(Outcome(point.name, point.name, Verdict.ERROR, reason))
    return Registry(tuple(sorted(rules, key=lambda r: r.code)), tuple(broken))


def _problem(loaded: object, rules: Iterable[AnyRule]) -> str:
    if isinstance(loaded, Failure):
        return loaded.message
    if not isinstance(loaded, Rule):
        return f"is a {type(loaded).__name__}, not a rules.spec.Rule"
    for rule in rules:
        if loaded.code == rule.code or loaded.name == rule.name:
            return f"{loaded.code} {loaded.name} would shadow {rule.code} {rule.name}"
    return ""
