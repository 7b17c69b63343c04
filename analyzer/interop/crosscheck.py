"""Our figures and HTA's for the same trace, side by side, with the cause of every difference.

For each rank and quantity there are three figures: ours by our definitions, ours computed by HTA's
conventions (:mod:`analyzer.interop.hta_rules`), and HTA's own. The last two must agree; between
the first and the last stand conventions, and a convention is named as a cause only when leaving
it out of our computation takes our figure away from HTA's.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from analyzer.errors import InputError, MissingExtraError
from analyzer.interop import hta_runner
from analyzer.interop.hta_rules import OURS, Answers, Rules, Subject, figures, prepare
from analyzer.model import LabeledRank

SCHEMA = "meshscope.crosscheck/1"
POINTS = 0.1
"""Percentages agree within this many percentage points, times within 0.1 % of the window."""

QUANTITIES: Mapping[str, tuple[str, str, str]] = {
    "steps": ("steps", "", "counts"),
    "compute_events": ("compute kernels", "", "counts"),
    "comm_events": ("communication kernels", "", "counts"),
    "memory_events": ("copies and memsets", "", "counts"),
    "window_us": ("window", "us", "temporal"),
    "compute_us": ("compute", "us", "temporal"),
    "non_compute_us": ("non-compute", "us", "temporal"),
    "idle_us": ("idle", "us", "temporal"),
    "compute_pct": ("compute", "%", "temporal"),
    "idle_pct": ("idle", "%", "temporal"),
    "overlap_pct": ("overlap of communication", "%", "overlap"),
    "comm_us": ("communication", "us", "communication"),
    "host_wait_us": ("idle per stream, host wait", "us", "idle_causes"),
    "kernel_wait_us": ("idle per stream, kernel wait", "us", "idle_causes"),
    "other_us": ("idle per stream, other", "us", "idle_causes"),
}
"""Key -> (what it is called, unit, which of HTA's analyses yields it)."""

CONVENTIONS: Mapping[str, str] = {
    "kernel_window": "the window runs from the first to the last event, not over the kept steps",
    "drop_last_step": "the last ProfilerStep is dropped",
    "linked_only": "device events whose launch is not in the trace are dropped",
    "by_name": "compute, communication and copies are told by name patterns",
    "syncs_busy": "waits (cuda_sync) on a stream count as busy",
    "host_ops": "host operators with a `stream` argument count as kernels",
    "pooled_devices": "all devices of a file are taken as one",
    "whole_us_segments": "time by kernel type is added up from pieces cut to whole us",
}
"""Field of Rules -> what HTA does."""


@dataclass(frozen=True, slots=True)
class Cause:
    """One of HTA's conventions and what it does to a figure (in the figure's unit)."""

    convention: str
    effect: float


@dataclass(frozen=True, slots=True)
class Row:
    """One quantity of one rank. None where a tool gives no figure."""

    rank: int
    setting: str  # of HTA: "default" or "include_last_profiler_step"
    quantity: str
    unit: str
    meshscope: float | None  # by our definitions
    ours: float | None  # ours by HTA's conventions
    hta: float | None  # HTA, rounding of timestamps switched off
    difference: float | None  # ours - hta
    agrees: bool | None  # None: HTA has no figure
    hta_default: float | None  # HTA as its users get it
    default_error: float | None  # hta_default - hta
    causes: tuple[Cause, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class CrossCheck:
    """All rows, and which HTA they were checked against."""

    hta_version: str
    pandas_version: str
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()

    @property
    def disagreements(self) -> tuple[Row, ...]:
        """Rows in which our computation by HTA's conventions does not give HTA's figure."""
        return tuple(row for row in self.rows if row.agrees is False)

    @property
    def compared(self) -> int:
        """Number of figures that both tools gave."""
        return sum(row.agrees is not None for row in self.rows)

    def to_json(self) -> str:
        """The cross-check as a JSON document."""
        document: dict[str, Any] = {
            "schema": SCHEMA,
            "hta": self.hta_version,
            "pandas": self.pandas_version,
        }
        document |= {"notes": self.notes, "rows": [asdict(row) for row in self.rows]}
        return json.dumps(document, indent=1)


def crosscheck(paths: Sequence[Path], *, hta_python: Path | None = None) -> CrossCheck:
    """Analyse the traces with both tools.

    Args:
        paths: Trace files or directories, as for ``analyze``.
        hta_python: Interpreter that has HTA; by default ours.

    Raises:
        InputError: No trace can be used, or none has device events.
        MissingExtraError: The interpreter has no HTA.
    """
    from analyzer.label import label_job
    from collectors import open_job

    return compare(label_job(open_job(paths)).ranks, hta_python=hta_python)


def compare(ranks: Sequence[LabeledRank], *, hta_python: Path | None = None) -> CrossCheck:
    """:func:`crosscheck` of ranks that are already read and labelled."""
    on_device = [rank for rank in ranks if not rank.host_side and rank.trace.device.height]
    if not on_device:
        message = "no device events in any trace"
        raise InputError(message, "HTA analyses only device work")
    notes = [
        f"rank {rank.trace.rank}: host-side figures only, nothing to compare"
        for rank in ranks
        if rank not in on_device
    ]
    rows: list[Row] = []
    said: Mapping[str, Any] = {}
    for rank in on_device:
        said = ask_hta(Path(rank.trace.meta.path), hta_python)
        rows += _compare_rank(rank, said)
    return CrossCheck(
        said.get("version", ""), said.get("pandas", ""), tuple(rows), notes=tuple(notes)
    )


def ask_hta(trace: Path, hta_python: Path | None = None) -> dict[str, Any]:
    """What HTA says about one trace file; see :mod:`analyzer.interop.hta_runner`.

    Raises:
        MissingExtraError: The interpreter has no HTA.
        InputError: The interpreter cannot be run, or HTA died of more than an exception.
    """
    python = str(hta_python or sys.executable)
    if os.sep in python:  # not a bare name on PATH; and no resolve(), which would leave a venv
        python = str(Path(python).absolute())
    with tempfile.TemporaryDirectory(prefix="meshscope-hta-") as scratch:
        out = Path(scratch) / "hta.json"
        command = [python, "-W", "ignore", "-", str(trace.resolve()), str(out)]
        try:
            done = subprocess.run(  # noqa: S603 - the user's own interpreter and trace
                command, input=Path(hta_runner.__file__).read_bytes(), capture_output=True,
                cwd=scratch, check=False,
            )  # fmt: skip
        except OSError as error:
            raise InputError(f"{python} cannot be run: {error.strerror}") from error
        if done.returncode == hta_runner.NO_HTA:
            message = f"HolisticTraceAnalysis is not installed for {python}"
            raise MissingExtraError(message, "pip install 'meshscope[hta]', or --hta-python PATH")
        if done.returncode != 0:
            last = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
            message = f"HTA died on {trace}: {''.join(last) or f'exit {done.returncode}'}"
            raise InputError(message)
        answers: dict[str, Any] = json.loads(out.read_text())
        return answers


def _compare_rank(rank: LabeledRank, said: Mapping[str, Any]) -> list[Row]:
    hosts = tuple((ts, dur, name) for ts, dur, name in said.get("host_rows", ()))
    subject = prepare(rank, Answers(said.get("classes", {}), hosts))
    mine = figures(subject, OURS)
    rows = _rows(rank, said, subject, mine, Rules())
    if subject.cut_ns is not None and said["exact_all_steps"] != said["exact"]:
        rows += _rows(rank, said, subject, mine, Rules(drop_last_step=False))
    return rows


def _rows(
    rank: LabeledRank,
    said: Mapping[str, Any],
    subject: Subject,
    mine: Mapping[str, float | None],
    rules: Rules,
) -> list[Row]:
    """All quantities of one rank under one setting of HTA's ``include_last_profiler_step``."""
    all_steps = not rules.drop_last_step
    hta = said["exact_all_steps" if all_steps else "exact"]
    default = {} if all_steps else said["default"]
    ours = figures(subject, rules)
    without = {
        name: figures(subject, replace(rules, **{name: False}))
        for name in CONVENTIONS
        if getattr(rules, name)
    }
    rows = []
    for key, (quantity, unit, analysis) in QUANTITIES.items():
        theirs, rounded = hta.get(key), default.get(key)
        effects = {name: (ours[key], left_out[key]) for name, left_out in without.items()}
        causes = _causes(effects, mine[key], theirs)
        agrees = None if theirs is None else _agree(key, ours, theirs)
        rows.append(
            Row(
                rank=rank.trace.rank,
                setting="include_last_profiler_step" if all_steps else "default",
                quantity=quantity,
                unit=unit,
                meshscope=mine[key],
                ours=ours[key],
                hta=theirs,
                difference=_minus(ours[key], theirs),
                agrees=agrees,
                hta_default=rounded,
                default_error=_minus(rounded, theirs),
                causes=causes,
                reason=_reason(causes, unit, agrees, _absence(hta, key, analysis)),
            )
        )
    return rows


def _agree(key: str, ours: Mapping[str, float | None], theirs: float) -> bool:
    value = ours[key]
    if value is None:
        return False
    if key.endswith("_pct"):
        return abs(value - theirs) <= POINTS
    if key.endswith("_us"):
        return abs(value - theirs) <= max(1.0, POINTS / 100 * (ours["window_us"] or 0))
    return value == theirs


def _causes(
    effects: Mapping[str, tuple[float | None, float | None]],
    mine: float | None,
    theirs: float | None,
) -> tuple[Cause, ...]:
    """Conventions without which our figure is further from HTA's, the largest effect first."""
    if mine is None or theirs is None or abs(mine - theirs) < _visible(theirs):
        return ()
    found = []
    for name, (with_it, without) in effects.items():
        if with_it is None or without is None:
            continue
        worse = abs(without - theirs) - abs(with_it - theirs)
        if worse > _visible(theirs):
            found.append(Cause(name, with_it - without))
    return tuple(sorted(found, key=lambda cause: -abs(cause.effect)))


def _visible(value: float) -> float:
    """Smaller differences are float noise or HTA's rounding to two decimals."""
    return max(0.011, 1e-6 * abs(value))


def _reason(causes: Sequence[Cause], unit: str, agrees: bool | None, absence: str | None) -> str:
    if absence is not None:
        return f"HTA gives no figure: {absence}"
    parts = [
        f"{CONVENTIONS[cause.convention]} ({_number(cause.effect, signed=True)}"
        f"{f' {unit}' if unit else ''})"
        for cause in causes
    ]
    if agrees is False:
        parts.append("not explained by any convention known here")
    return "; ".join(parts)


def _absence(variant: Mapping[str, Any], key: str, analysis: str) -> str | None:
    """Why HTA has no figure; None where it has one."""
    if variant.get(key) is not None:
        return None
    failed = variant.get("failed", {})
    said = failed if isinstance(failed, str) else failed.get(analysis)
    return said or "it knows no communication by its names"


def _minus(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else a - b


def render(check: CrossCheck) -> str:
    """The cross-check as a plain-text table, one block per rank and setting."""
    lines = [f"meshscope against {check.hta_version} (pandas {check.pandas_version})", ""]
    letters = {name: chr(ord("a") + i) for i, name in enumerate(CONVENTIONS)}
    head = ("quantity", "meshscope", "by HTA's rules", "HTA", "", "HTA as shipped", "because")
    for (rank, setting), rows in _blocks(check.rows).items():
        lines += [
            f"rank {rank}, HTA with {setting}{' settings' if setting == 'default' else '=True'}"
        ]
        cells = [head, *(_cells(row, letters) for row in rows)]
        if all(row.hta_default is None for row in rows):
            cells = [(*line[:5], "", line[6]) for line in cells]
        widths = [max(len(line[i]) for line in cells) for i in range(len(head))]
        for line in cells:
            padded = [
                text.ljust(width) if i in (0, 4, 6) else text.rjust(width)
                for i, (text, width) in enumerate(zip(line, widths, strict=True))
            ]
            lines.append("  " + "  ".join(padded).rstrip())
        lines.append("")
    used = {cause.convention for row in check.rows for cause in row.causes}
    lines += [
        f"{letters[name]}: in HTA, {text}" for name, text in CONVENTIONS.items() if name in used
    ]
    lines += [
        "by HTA's rules: our computation by HTA's conventions, which must give HTA's figure.",
        "HTA: with HTA_DISABLE_NS_ROUNDING=1. As shipped it rounds starts up and ends down to",
        "whole us where the trace has finer timestamps.",
        *check.notes,
        f"{check.compared - len(check.disagreements)} of {check.compared} figures agree.",
    ]
    return "\n".join(lines)


def _blocks(rows: Sequence[Row]) -> dict[tuple[int, str], list[Row]]:
    blocks: dict[tuple[int, str], list[Row]] = {}
    for row in rows:
        blocks.setdefault((row.rank, row.setting), []).append(row)
    return blocks


def _cells(row: Row, letters: Mapping[str, str]) -> tuple[str, ...]:
    verdict = {True: "=", False: "DIFFERS", None: ""}[row.agrees]
    shipped = _number(row.hta_default)
    if row.default_error and abs(row.default_error) >= _visible(row.hta or 0):
        shipped += f" ({_number(row.default_error, signed=True)})"
    because = ", ".join(
        f"{letters[cause.convention]} {_number(cause.effect, signed=True)}" for cause in row.causes
    )
    if not row.causes:
        because = row.reason
    unit = f", {row.unit}" if row.unit else ""
    figures_ = (_number(row.meshscope), _number(row.ours), _number(row.hta))
    return (f"{row.quantity}{unit}", *figures_, verdict, shipped, because)


def _number(value: float | None, *, signed: bool = False) -> str:
    if value is None:
        return "-"
    sign = "+" if signed else ""
    return f"{value:{sign},.0f}" if float(value).is_integer() else f"{value:{sign},.2f}"
