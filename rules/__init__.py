"""Rules: what is wrong with a step, judged from measurements.

A rule is one module in :mod:`rules.catalog` (or in another package, through the entry point group
``meshscope.rules``) that holds a :class:`rules.spec.Rule` named ``RULE``.
:func:`rules.runner.run` runs them all and yields one outcome a rule.
"""

from __future__ import annotations

from rules.registry import Registry, load
from rules.runner import run
from rules.settings import RuleSettings, validate
from rules.spec import Rule, option

__all__ = ["Registry", "Rule", "RuleSettings", "load", "option", "run", "validate"]
