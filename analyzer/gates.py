"""Gates: limits evaluated on the result document alone, with an honest third answer.

A gate passes, fails, or has no verdict. It never passes when what it needs was not measured: no
kept step, truncated input, more than 5 % of device time unclassified, no communication found
although several ranks must communicate, an axis of the stated strategy that was not seen, missing
ranks for a figure that compares ranks, or no rule that ran for a gate on findings.

Grammar of ``--gate``::

    expression := comparison { "and" comparison }
    comparison := path ("<=" | "<" | ">=" | ">" | "==" | "!=") number [unit]
    path       := name { "." name }          a key of the result document (``axes.tp.exposed_ns``)
    unit       := % | ns | us | ms | s | B | KiB | MiB | GiB | KB | MB | GB
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from analyzer.errors import ExitCode, UsageError
from analyzer.model import AXES, SEVERITY_RANK, GateResult, Severity, Verdict

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
    "pct": frozenset({"", "%"}),
    "ns": frozenset({"", "ns", "us", "ms", "s"}),
    "bytes": frozenset({"", "B", "KiB", "MiB", "GiB", "KB", "MB", "GB"}),
}
_PLAIN = frozenset({""})
_WORST = "exposed_comm_pct_worst"
_COMPARISON = re.compile(
    r"\s*([A-Za-z_][\w+.\-]*)\s*(<=|>=|==|!=|<|>)\s*([+-]?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)\s*(%|[A-Za-z]*)\s*"
)
_LIMIT = re.compile(r"\s*(?:([a-z_+]+)\s*=)?\s*(\d{1,9}(?:\.\d+)?)\s*%\s*")
_AXIS_SHARE = re.compile(r"exposed_comm_pct\[([a-z_+]+)\]")


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
        path = f"{_WORST}.pct" if path == _WORST else path
        limit = float(number) * _unit_scale(path, unit)
        if not math.isfinite(limit):
            raise UsageError(f"gate {expression!r}: {number} is not a usable number")
        comparisons.append(Comparison(path, op, limit, unit))
    return Gate(expression.strip(), tuple(comparisons))


def _unit_scale(path: str, unit: str) -> float:
    """The factor from ``unit`` to the unit in the figure's name; any other unit is an error.

    The name that carries the unit is the last one with a known ending: the causes and axes below
    ``step.idle_ns`` are in ns too.
    """
    allowed = _PLAIN
    for name in path.split("."):
        allowed = _DIMENSIONS.get(name.rsplit("_", 1)[-1], allowed)
    if unit not in allowed:
        known = ", ".join(sorted(u for u in allowed if u)) or "a number alone"
        raise UsageError(f"gate on {path!r}: unit {unit!r} does not fit", f"use {known}")
    return _UNITS[unit]


def exposed_comm_gate(limit: str) -> Gate:
    """``15%`` limits the whole step, ``tp=8%`` one axis (share of step time)."""
    match = _LIMIT.fullmatch(limit)
    if match is None:
        raise UsageError(f"--max-exposed-comm {limit!r} is not understood", "write 15% or tp=8%")
    axis, number = match.groups()
    if axis and not set(axis.split("+")) <= set(AXES):
        raise UsageError(f"--max-exposed-comm: no axis {axis!r}", "axes: " + ", ".join(AXES))
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
    if (match := _AXIS_SHARE.fullmatch(path)) is not None:
        return _axis_share(document, match.group(1))
    node: Any = document
    for key in path.split("."):
        if node is None:
            break
        if not isinstance(node, Mapping):
            raise UsageError(
                f"gate on {path!r}: there is nothing below a number", "see docs/json.md"
            )
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
    if reason := _stated_but_unseen(document, path):
        return reason
    if "worst" in path and _ranks_missing(coverage):
        return "ranks are missing"
    return ""


def _stated_but_unseen(document: Mapping[str, Any], path: str) -> str:
    """Why a figure over all axes lacks one: the user stated an axis that never communicated.

    An axis of the same stated strategy that was seen can still be judged on its own.
    """
    over_all = path.startswith((_WORST, "step.exposed_comm")) or path == "exposed_comm_pct"
    about_bubble = "bubble" in path
    if not over_all and not about_bubble:
        return ""
    seen = {part for axis in document.get("axes") or {} for part in axis.split("+")}
    wanted = [axis for axis in document["job"].get("expect_axes") or [] if axis not in seen]
    wanted = [axis for axis in wanted if over_all or axis == "pp"]
    if not wanted:
        return ""
    return f"no {' or '.join(wanted)} communication was found although the strategy has it"


def _must_communicate(document: Mapping[str, Any]) -> bool:
    job = document["job"]
    return (job.get("world_size") or 1) > 1 or bool(job.get("expect"))


def _ranks_missing(coverage: Mapping[str, Any]) -> bool:
    expected = coverage.get("ranks_expected")
    return expected is not None and len(coverage["ranks_seen"]) < expected


def fail_on_gate(severity: Severity, document: Mapping[str, Any]) -> GateResult:
    """The ``--fail-on`` gate: fails when a finding reaches ``severity``.

    Without one it passes only if rules could look: some rule gave a verdict and a step was kept.
    """
    limit = SEVERITY_RANK[severity]
    found = [Severity(finding["severity"]) for finding in document["findings"]]
    hits = sum(SEVERITY_RANK[s] >= limit for s in found)
    reason = "" if hits else _why_rules_are_blind(document)
    passed = None if reason else hits == 0
    name = f"fail-on {severity.value}"
    return GateResult(name, severity.value, float(hits), passed, reason, "findings")


def _why_rules_are_blind(document: Mapping[str, Any]) -> str:
    looked = {Verdict.PASS, Verdict.WARN, Verdict.FAIL}
    if not any(rule["verdict"] in looked for rule in document["rules"]):
        return "no rule was applicable or switched on"
    return _why_no_verdict(document, "findings")


def exit_code(results: Iterable[GateResult]) -> ExitCode:
    """1 when any gate failed, else 3 when any has no verdict, else 0."""
    outcomes = {result.passed for result in results}
    if False in outcomes:
        return ExitCode.GATE_FAILED
    return ExitCode.NO_VERDICT if None in outcomes else ExitCode.OK
