"""What all renderers say alike about a document: parts of a step, labels, coverage.

Everything here reads the result document alone. Text that comes from a trace is made visible
(:func:`reports.text.visible`) here or by the renderer, never printed raw.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from analyzer.model import AXES
from reports.text import NONE, duration, percent, quantity, ranks_phrase, share, visible, words

IDLE_MEANS: Mapping[str, str] = {
    "bubble": "waiting for another pipeline stage",
    "host_bound": "the host had not launched the next kernel yet",
    "sync": "the host was blocked in a synchronisation",
    "data": "waiting for the data loader",
    "other": "the trace does not tell why",
}

GLYPHS: Mapping[str, str] = {
    "compute": "█", "bubble": "░", "memcpy": "m", "idle": "·",
    "dp_replicate": "R", "dp_shard": "S", "cp": "C", "tp": "T", "pp": "P", "ep": "E", "etp": "X",
    "edp": "D", "world": "W", "unknown": "?",
}  # fmt: skip
"""One character for each colour name: the channel besides colour."""


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a step: compute, an axis' exposed communication, bubble, copies or idle time."""

    kind: str  # compute, exposed_comm, bubble, memcpy or idle
    detail: str  # axis or idle cause, else empty
    ns: int

    @property
    def label(self) -> str:
        """What readers see."""
        if self.kind == "exposed_comm":
            return f"exposed {visible(self.detail)}"
        if self.kind == "idle":
            return f"idle: {words(visible(self.detail))}"
        return {"memcpy": "copies", "bubble": "pipeline bubble"}.get(self.kind, self.kind)

    @property
    def key(self) -> str:
        """Colour name, one of :data:`GLYPHS`, whatever the axis or cause is called."""
        return axis_key(self.detail) if self.kind == "exposed_comm" else self.kind


def axis_key(axis: str) -> str:
    """Colour name of an axis: flattened axes take that of their first part."""
    first = axis.split("+", 1)[0]
    return first if first in AXES else "unknown"


def parts(step: Mapping[str, Any]) -> list[Part]:
    """A budget of the document as parts that add up to its time; empty ones are left out."""
    found = [Part("compute", "", step["compute_ns"])]
    found += [Part("exposed_comm", axis, ns) for axis, ns in step["exposed_comm_ns"].items()]
    found += [Part("bubble", "", step["bubble_ns"] or 0), Part("memcpy", "", step["memcpy_ns"])]
    found += [Part("idle", cause, ns) for cause, ns in step["idle_ns"].items()]
    return [part for part in found if part.ns]


def worth(finding: Mapping[str, Any], document: Mapping[str, Any]) -> str:
    """``up to 1.2 ms a step (3.4 %)``; empty when the finding has no time worth."""
    ns = finding["savings_ns"]
    if ns is None:
        return ""
    step = document["step"]
    part = share(ns, step["time_ns"]) if step else None
    amount = f"{duration(ns)} a step" + (f" ({percent(part)})" if part is not None else "")
    prefix = {"upper bound": "up to ", "estimate": "about "}.get(finding["savings_kind"], "")
    return prefix + amount


def finding_facts(finding: Mapping[str, Any], document: Mapping[str, Any]) -> list[tuple[str, str]]:
    """A finding's figures as (name, value): worth, measured, roofline, threshold, where."""
    value = worth(finding, document)
    facts = [("worth", value)] if value else []
    facts += [
        (name, quantity(finding[name], finding["unit"]))
        for name in ("measured", "roofline", "threshold")
        if finding[name] is not None
    ]
    if finding["axis"]:
        facts.append(("axis", visible(finding["axis"])))
    if finding.get("explained_by"):
        facts.append(("explained by", ", ".join(map(visible, finding["explained_by"]))))
    if finding["ranks"]:
        facts.append(("on", ranks_phrase(finding["ranks"])))
    return facts


def gate_word(passed: bool | None) -> str:
    """``pass``, ``FAIL`` or ``no verdict``."""
    return "no verdict" if passed is None else "pass" if passed else "FAIL"


def plural(count: int, noun: str) -> str:
    """``1 rank``, ``8 ranks``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def job_facts(document: Mapping[str, Any]) -> list[str]:
    """Strategy, mesh, ranks, device, steps: each in a few words."""
    job = document["job"]
    degrees = ((visible(axis), "?" if d is None else d) for axis, d in job["mesh"].items())
    seen, world = len(job["ranks_seen"]), job["world_size"]
    kept, dropped = len(job["steps_kept"]), _left_out(job)
    facts = [
        visible(job["strategy"] or "strategy unknown"),
        " × ".join(f"{axis}={degree}" for axis, degree in degrees),
        plural(seen, "rank") + (f" of {world}" if world and world != seen else ""),
        visible(job["device"]),
        f"{plural(kept, 'step')} kept" + (f", {dropped} left out" if dropped else ""),
        "host-side figures" if job["host_side"] else "",
    ]
    return [fact for fact in facts if fact]


def _left_out(job: Mapping[str, Any]) -> int:
    """Steps left out on some rank; not those that another device of the same rank keeps."""
    kept: dict[int, set[int]] = {}
    for step in job["steps_kept"]:
        kept.setdefault(step["step"], set()).update(step["ranks"])
    return sum(not set(s["ranks"]) <= kept.get(s["step"], set()) for s in job["steps_dropped"])


def coverage_lines(document: Mapping[str, Any]) -> list[str]:
    """What the figures rest on, and what was dropped, repaired or left out."""
    coverage, job = document["coverage"], document["job"]
    seen, expected = coverage["ranks_seen"], coverage["ranks_expected"]
    with_events, total = coverage["steps_with_device_events"], coverage["steps_total"]
    lines = [
        plural(len(seen), "rank")
        + (f" of {expected}" if expected else "")
        + (f" read ({ranks_phrase(seen)})" if seen else " read"),
        f"{with_events} of {plural(total, 'step')} with device events; "
        f"steps are told by: {visible(job['step_source'])}",
    ]
    if coverage["unclassified_pct"] is not None:
        lines.append(f"{percent(coverage['unclassified_pct'])} of device busy time is unclassified")
    for what in ("dropped", "repaired"):
        counts = coverage[f"{what}_events"]
        if counts:
            listed = ", ".join(f"{count:,} {visible(reason)}" for reason, count in counts.items())
            lines.append(f"events {what}: {listed}")
    lines += _comparison_lines(document)
    lines += [f"truncated: {visible(path)}" for path in coverage["truncated_inputs"]]
    lines += [
        f"left out: {visible(o['path'])}: {visible(o['reason'])}" for o in coverage["left_out"]
    ]
    for step in job["steps_dropped"]:
        everywhere = step["ranks"] == job["ranks_seen"]
        where = "" if everywhere else f" on {ranks_phrase(step['ranks'])}"
        lines.append(f"{visible(step['label'])} not averaged{where}: {visible(step['reason'])}")
    return lines


def _comparison_lines(document: Mapping[str, Any]) -> list[str]:
    """How far ranks could be compared: clocks, and what found no counterpart."""
    clock, coverage = document["clock"], document["coverage"]
    lines = []
    if clock["residual_ns"] is not None:
        offsets = [abs(ns) for ns in clock["offset_ns"].values() if ns is not None]
        lines.append(
            f"clocks of the ranks: largest offset {duration(max(offsets, default=0))}, "
            f"residual {duration(clock['residual_ns'])}"
        )
    if coverage.get("unmatched_total"):
        reasons: dict[str, int] = {}
        for row in coverage["unmatched"]:
            reasons[row["reason"]] = reasons.get(row["reason"], 0) + row["count"]
        listed = ", ".join(f"{count:,} {visible(reason)}" for reason, count in reasons.items())
        lines.append(f"{plural(coverage['unmatched_total'], 'collective')} unmatched: {listed}")
    return lines


def latest(document: Mapping[str, Any], axis: str) -> str:
    """Who started an axis' collectives last most often, and how often; a dash for nobody."""
    columns = document.get("waits") or {}
    names = ("rank", "axis", "late", "instances")
    rows = [
        (late, instances, rank)
        for rank, on, late, instances in zip(*(columns.get(n, ()) for n in names), strict=True)
        if on == axis and late
    ]
    if not rows:
        return NONE
    late, instances, rank = max(rows, key=lambda row: (row[0] / row[1], -row[2]))
    return f"rank {rank}: {late} of {instances}"


def cells(amounts: list[int], width: int) -> list[int]:
    """Share ``width`` cells in proportion to ``amounts`` (largest remainder), adding up exactly."""
    total = sum(amounts)
    if not total:
        return [0] * len(amounts)
    exact = [amount * width / total for amount in amounts]
    shared = [int(value) for value in exact]
    by_remainder = sorted(range(len(exact)), key=lambda i: shared[i] - exact[i])
    for index in by_remainder[: width - sum(shared)]:
        shared[index] += 1
    return shared


def rule_counts(document: Mapping[str, Any]) -> str:
    """``12 rules: 1 fail, 2 warn, 7 pass, 2 not applicable``."""
    verdicts = [outcome["verdict"] for outcome in document["rules"]]
    order = ("error", "fail", "warn", "pass", "not_applicable")
    counts = [f"{verdicts.count(v)} {words(v)}" for v in order if v in verdicts]
    return f"{plural(len(verdicts), 'rule')}: {', '.join(counts)}"
