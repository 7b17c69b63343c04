"""What a rule is: metadata, what it needs, typed options and a check that yields findings."""

from __future__ import annotations

import dataclasses
import inspect
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from analyzer.model import AXES, EvidenceRow, Finding, Quantity, Severity

if TYPE_CHECKING:
    from analyzer.measure.results import Measurements

OptionsT = TypeVar("OptionsT")
ValueT = TypeVar("ValueT")

ALL_AXES = AXES
HEADINGS = (
    "What it measures",
    "Roofline",
    "Why it matters",
    "How to fix",
    "Example",
    "When it is silent",
    "References",
)
"""Headings that every rule's module docstring has, in this order; they become its page."""


def option(default: ValueT, doc: str, *, unit: str = "") -> ValueT:
    """Declare one field of a rule's options dataclass, with the text of its documentation.

    Args:
        default: value used when no configuration sets the option.
        doc: one sentence for the rule's page.
        unit: unit of the value, as it is printed.
    """
    field: ValueT = dataclasses.field(default=default, metadata={"doc": doc, "unit": unit})
    return field


@dataclass(frozen=True, slots=True)
class Need:
    """Something a rule cannot do without. ``missing`` returns None, or why it is not there."""

    name: str
    missing: Callable[[Measurements], str | None]


@dataclass(frozen=True, slots=True)
class Rule(Generic[OptionsT]):
    """One rule.

    Attributes:
        code: family and number (``COM001``); never reused.
        name: noun phrase for the problem, with dashes; the module has the same name.
        title: one line for lists of rules.
        axes: axes the rule looks at; empty when it is not about communication.
        needs: facts without which the rule is not applicable.
        severity: the highest severity it gives by default.
        options: frozen dataclass whose fields are made by :func:`option`, all with defaults.
        check: yields the findings; reads nothing but its two arguments.
        since: first version that has the rule.
        symptom: it measures lost time that other rules may explain, so that its findings and
            theirs on the same axis must not be added up.
    """

    code: str
    name: str
    title: str
    axes: tuple[str, ...]
    needs: tuple[Need, ...]
    severity: Severity
    options: type[OptionsT]
    check: Callable[[Measurements, OptionsT], Iterator[Finding]]
    since: str
    symptom: bool = False

    @property
    def doc(self) -> str:
        """Path of the rule's page in the repository."""
        return f"docs/rules/{self.name}.md"

    @property
    def explanation(self) -> str:
        """The docstring of the module that defines the rule: the text of its page."""
        return inspect.getdoc(sys.modules[self.check.__module__]) or ""

    def finding(  # noqa: PLR0913 - mirrors the fields of Finding
        self,
        title: str,
        severity: Severity,
        measured: Quantity,
        *,
        axis: str | None = None,
        threshold: float | None = None,
        roofline: float | None = None,
        savings_ns: int | None = None,
        savings_kind: str = "upper bound",
        ranks: tuple[int, ...] = (),
        steps: tuple[int, ...] = (),
        evidence: tuple[EvidenceRow, ...] = (),
        advice: str = "",
    ) -> Finding:
        """A finding of this rule. ``threshold`` and ``roofline`` have the unit of ``measured``."""
        return Finding(
            rule=self.code,
            title=title,
            severity=severity,
            axis=axis,
            measured=measured,
            threshold=threshold,
            roofline=roofline,
            savings_ns=savings_ns,
            savings_kind=savings_kind,
            ranks=ranks,
            steps=steps,
            evidence=evidence,
            advice=advice,
            doc=self.doc,
        )


AnyRule = Rule[Any]
"""A rule whose options type does not matter here."""
