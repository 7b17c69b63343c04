"""Gates: limits evaluated on the result document alone, with an honest third answer.

A gate passes, fails, or has no verdict. It never passes when what it needs was not measured: no
kept step, truncated input, more than 5 % of device time unclassified, no communication found
although several ranks (or the strategy) must communicate, an axis that was not seen, or missing
ranks for a figure that compares ranks.

Grammar of ``--gate``::

    expression := comparison { "and" comparison }
    comparison := path ("<=" | "<" | ">=" | ">" | "==" | "!=") number [unit]
    path       := name { "." name }          a key of the result document (``axes.tp.exposed_ns``)
    unit       := % | ns | us | ms | s | B | KiB | MiB | GiB | KB | MB | GB
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from analyzer.errors import ExitCode, UsageError
from analyzer.model import SEVERITY_RANK, GateResult, Severity

MAX_UNCLASSIFIED_PCT = 5.0
"""Above this share of unclassified device time no communication figure may pass a gate."""

_COMPARE: Mapping[str, Callable[[float, float], bool]] = {
    "<=": operator.le,
    "<": operator.lt,
    ">=": operator.ge,
    ">": operator.gt,
    "==": operator.eq,
    "!=": operator.ne,
}
_UNITS: Mapping[str, float] = {
    "": 1, "%": 1, "ns": 1, "us": 1e3, "ms": 1e6, "s": 1e9,
    "B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "KB": 1e3, "MB": 1e6, "GB": 1e9,
}  # fmt: skip
_DIMENSIONS: Mapping[str, frozenset[str]] = {
    "_pct": frozenset({"", "%"}),
    "_ns": frozenset({"", "ns", "us", "ms", "s"}),
    "bytes": frozenset({"", "B", "KiB", "MiB", "GiB", "KB", "MB", "GB"}),
}
_COMPARISON = re.compile(
    r"\s*([A-Za-z_][\w+.\-]*)\s*(<=|>=|==|!=|<|>)\s*([+-]?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)\s*(%|[A-Za-z]*)\s*"
)
_LIMIT = re.compile(r"\s*(?:([a-z_+]+)\s*=)?\s*(\d+(?:\.\d+)?)\s*%?\s*")


@dataclass(frozen=True, slots=True)
class Comparison:
    """One comparison of a document figure with a limit in the figure's own unit."""

    path: str
    op: str
    limit: float
    unit: str

    def holds(self, value: float) -> bool:
        """Whether ``value`` satisfies the limit."""
        return _COMPARE[self.op](value, self.limit)


@dataclass(frozen=True, slots=True)
class Gate:
    """A named gate: all comparisons must hold."""

    text: str
    comparisons: tuple[Comparison, ...]


def parse_gate(expression: str) -> Gate:
    """Parse a ``--gate`` expression; a bad one raises :class:`UsageError` quoting it."""
    comparisons: list[Comparison] = []
    for part in re.split(r"\s+and\s+", expression.strip()):
        match = _COMPARISON.fullmatch(part)
        if match is None:
            raise UsageError(
                f"gate {expression!r} is not understood at {part!r}",
                "write a figure, a comparison and a number, e.g. 'axes.tp.exposed_ns <= 12ms'",
            )
        path, op, number, unit = match.groups()
        comparisons.append(Comparison(path, op, float(number) * _unit_scale(path, unit), unit))
    return Gate(expression.strip(), tuple(comparisons))


def _unit_scale(path: str, unit: str) -> float:
    allowed = next((units for end, units in _DIMENSIONS.items() if path.endswith(end)), None)
    if unit not in _UNITS or (allowed is not None and unit not in allowed):
        known = ", ".join(sorted(u for u in (allowed or _UNITS) if u))
        raise UsageError(f"gate on {path!r}: unit {unit!r} does not fit", f"use one of {known}")
    return _UNITS[unit]


def exposed_comm_gate(limit: str) -> Gate:
    """``15%`` limits the whole step, ``tp=8%`` one axis (share of step time)."""
    match = _LIMIT.fullmatch(limit)
    if match is None:
        raise UsageError(f"--max-exposed-comm {limit!r} is not understood", "write 15% or tp=8%")
    axis, number = match.groups()
    path = f"exposed_comm_pct[{axis}]" if axis else "exposed_comm_pct"
    text = f"max-exposed-comm {axis + '=' if axis else ''}{float(number):g}%"
    return Gate(text, (Comparison(path, "<=", float(number), "%"),))


def bubble_gate(limit: str) -> Gate:
    """``10%`` limits the pipeline bubble's share of step time."""
    match = _LIMIT.fullmatch(limit)
    if match is None or match.group(1):
        raise UsageError(f"--max-bubble {limit!r} is not understood", "write 10%")
    number = float(match.group(2))
    return Gate(f"max-bubble {number:g}%", (Comparison("bubble_pct", "<=", number, "%"),))


def evaluate(gates: Sequence[Gate], document: Mapping[str, Any]) -> tuple[GateResult, ...]:
    """Evaluate gates on a result document (definitions section 10)."""
    return tuple(_evaluate_one(gate, document) for gate in gates)


def _evaluate_one(gate: Gate, document: Mapping[str, Any]) -> GateResult:
    first = gate.comparisons[0]
    limit: float | str = first.limit if len(gate.comparisons) == 1 else gate.text
    unit = first.unit or ("%" if first.path.split("[")[0].endswith("_pct") else "")
    values: list[float] = []
    for comparison in gate.comparisons:
        value, reason = lookup(document, comparison.path)
        reason = _why_no_verdict(document, comparison.path) or reason
        if reason or value is None:
            return GateResult(gate.text, limit, value, None, reason or "not measured", unit)
        values.append(value)
    passed = all(c.holds(v) for c, v in zip(gate.comparisons, values, strict=True))
    return GateResult(gate.text, limit, values[0], passed, "", unit)


def lookup(document: Mapping[str, Any], path: str) -> tuple[float | None, str]:
    """The numeric figure at ``path`` and, when there is none, the reason."""
    if (match := re.fullmatch(r"exposed_comm_pct\[([a-z_+]+)\]", path)) is not None:
        return _axis_share(document, match.group(1))
    if path == "exposed_comm_pct_worst":
        path = "exposed_comm_pct_worst.pct"
    node: Any = document
    for key in path.split("."):
        if not isinstance(node, Mapping):
            break
        if key not in node:
            if node is document:
                known = ", ".join(sorted(k for k in document if k != "schema"))
                raise UsageError(f"gate on {path!r}: no such figure", f"keys are {known}")
            return None, f"{path} was not seen in this trace"
        node = node[key]
    if isinstance(node, bool) or not isinstance(node, int | float):
        reasons = document.get("null_reasons") or {}
        return None, str(reasons.get(path) or f"{path} was not measured")
    return float(node), ""


def _axis_share(document: Mapping[str, Any], axis: str) -> tuple[float | None, str]:
    step = document.get("step")
    if not step or not step["time_ns"]:
        return None, "no step could be measured"
    if axis not in (document.get("axes") or {}):
        return None, f"no {axis} communication was found"
    return 100.0 * step["exposed_comm_ns"].get(axis, 0) / step["time_ns"], ""


def _why_no_verdict(document: Mapping[str, Any], path: str) -> str:
    coverage = document["coverage"]
    if coverage["truncated_inputs"]:
        return "truncated input: " + ", ".join(map(str, coverage["truncated_inputs"]))
    if document.get("step") is None:
        return "no step could be measured"
    unclassified = coverage.get("unclassified_pct")
    if unclassified is None or unclassified > MAX_UNCLASSIFIED_PCT:
        share = "unknown" if unclassified is None else f"{unclassified:.1f} %"
        return f"unclassified device time is {share} (limit {MAX_UNCLASSIFIED_PCT:g} %)"
    about_comm = "comm" in path or path.startswith("axes")
    if about_comm and not document.get("axes") and _must_communicate(document):
        return "no communication was found although the job has several ranks"
    if "worst" in path and _ranks_missing(coverage):
        return "ranks are missing"
    return ""


def _must_communicate(document: Mapping[str, Any]) -> bool:
    job = document["job"]
    return (job.get("world_size") or 1) > 1 or bool(job.get("expect"))


def _ranks_missing(coverage: Mapping[str, Any]) -> bool:
    expected = coverage.get("ranks_expected")
    return expected is not None and len(coverage["ranks_seen"]) < expected


def fail_on_gate(severity: Severity, severities: Iterable[Severity]) -> GateResult:
    """The ``--fail-on`` gate: fails when a finding reaches ``severity``."""
    limit = SEVERITY_RANK[severity]
    hits = sum(SEVERITY_RANK[s] >= limit for s in severities)
    name = f"fail-on {severity.value}"
    return GateResult(name, severity.value, float(hits), hits == 0, "", "findings")


def exit_code(results: Iterable[GateResult]) -> ExitCode:
    """1 when any gate failed, else 3 when any has no verdict, else 0."""
    outcomes = {result.passed for result in results}
    if False in outcomes:
        return ExitCode.GATE_FAILED
    return ExitCode.NO_VERDICT if None in outcomes else ExitCode.OK
