"""Strategies: parsing ``--expect``, and recognising the strategy a trace shows.

The facts live in ``catalog/strategies.toml``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from analyzer import catalog
from analyzer.errors import UsageError
from analyzer.model import AXES, UNKNOWN_AXIS, WORLD_AXIS, Phase

REGATHER = 1.3
"""All-gathers per reduce-scatter above which weights are gathered again in backward (ZeRO-3): the
first unit is kept, so that n units give 2n - 1 all-gathers and n reduce-scatters."""
MAX_DEGREE = 2**24
"""No axis has more ranks: larger numbers are typing errors, and need not be computed with."""
SHOWN_CHARS = 32  # of a wrong value in a message


@dataclass(frozen=True, slots=True)
class OpExpectation:
    """One kind of collective a strategy issues on an axis."""

    op: str  # canonical collective
    critical: bool  # True: producer just finished and consumer waits (theory 3.2 CRIT)
    hidden_by: str = ""  # what can hide it when not critical
    exposed_minimum: str = "none"  # none, all, first, last: what no schedule can hide


@dataclass(frozen=True, slots=True)
class AxisExpectation:
    """What a strategy does on one axis. An axis passes when any of ``variants`` is satisfied."""

    axis: str
    degree: int | None
    word: str  # strategy word that put it here
    required: tuple[frozenset[str], ...]  # each set: at least one of these ops must occur
    ops: Mapping[str, OpExpectation] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Strategy:
    """A parsed strategy: its words and, per axis, what to expect."""

    text: str
    words: tuple[str, ...] = ()
    axes: Mapping[str, AxisExpectation] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AxisFacts:
    """What was seen on one axis: calls by (collective, phase), and the largest group."""

    calls: Mapping[tuple[str, str], int] = field(default_factory=dict)
    degree: int | None = None

    def seen(self, op: str, phase: str, count: int, group_size: int | None) -> AxisFacts:
        """These facts with ``count`` more calls."""
        calls = dict(self.calls)
        calls[op, phase] = calls.get((op, phase), 0) + count
        return replace(self, calls=calls, degree=max(self.degree or 0, group_size or 0) or None)

    def count(self, op: str, phase: str | None = None) -> int:
        """Calls of a collective, in one phase or in all."""
        return sum(n for (o, p), n in self.calls.items() if o == op and phase in (None, p))

    @property
    def ops(self) -> frozenset[str]:
        """Collectives that occur."""
        return frozenset(op for op, _ in self.calls)


# ---- what the user writes -----------------------------------------------------------------------


def parse_expect(text: str) -> Strategy:
    """Parse strategy words joined by ``_`` or ``+``, each with an optional degree.

    ``fsdp_tp``, ``fsdp8_tp4``, ``hsdp+tp+pp``; case does not matter. Of two words for one axis
    (``tp_sp``) the later one says what to expect there.

    Raises:
        UsageError: an unknown word (the message lists the words), a degree below 2 or above
            :data:`MAX_DEGREE`, or a degree on a word that spans several axes.
    """
    parts = [part for part in re.split(r"[_+\s]+", text.strip().lower()) if part]
    if not parts:
        raise UsageError("--expect: no strategy given", hint=_words_hint())
    words: list[str] = []
    axes: dict[str, AxisExpectation] = {}
    for part in parts:
        row, degree = _word(part, text)
        words.append(row.word)
        axes |= _expectations(row, degree)
    return Strategy(text.strip(), tuple(words), axes)


def _word(part: str, text: str) -> tuple[catalog.StrategyRow, int | None]:
    known = catalog.strategies()
    word = max((word for word in known if part.startswith(word)), key=len, default="")
    digits = part[len(word) :]
    if not word or (digits and not digits.isdecimal()):
        raise UsageError(f"--expect {text}: unknown strategy {part!r}", hint=_words_hint())
    row = known[word]
    if not digits:
        return row, None
    if len(row.axes) > 1:
        names = ",".join(f"{axis.axis}=.." for axis in row.axes)
        raise UsageError(
            f"--expect {text}: {word} has several axes, one degree does not say which",
            hint=f"state them with --mesh {names}",
        )
    degree = _degree(digits)
    if degree is None or degree < 2:
        raise UsageError(f"--expect: the degree of {word} must be from 2 to {MAX_DEGREE}")
    return row, degree


def _degree(text: str) -> int | None:
    """A degree as written, None where it is no number or a larger one than any axis has."""
    digits = text.strip()
    if not digits.isdecimal() or len(digits.lstrip("0")) > len(str(MAX_DEGREE)):
        return None
    degree = int(digits.lstrip("0") or "0")
    return degree if degree <= MAX_DEGREE else None


def _expectations(row: catalog.StrategyRow, degree: int | None) -> dict[str, AxisExpectation]:
    return {
        axis.axis: AxisExpectation(
            axis=axis.axis,
            degree=degree,
            word=row.word,
            required=axis.required,
            ops={
                op: OpExpectation(op, facts.critical, facts.hidden_by, facts.exposed_minimum)
                for op, facts in axis.ops.items()
            },
        )
        for axis in row.axes
    }


def _words_hint() -> str:
    return "words: " + ", ".join(catalog.strategies())


def parse_mesh(text: str) -> dict[str, int]:
    """Parse ``pp=2,dp_shard=4,tp=2``, outermost axis first.

    Raises:
        UsageError: an axis that does not exist or comes twice, or a degree below 1 or above
            :data:`MAX_DEGREE`.
    """
    names = [axis for axis in AXES if axis not in (WORLD_AXIS, UNKNOWN_AXIS)]
    mesh: dict[str, int] = {}
    for part in filter(None, re.split(r"[,\s]+", text.strip())):
        axis, _, degree = part.partition("=")
        axis = axis.strip().lower()
        if axis not in names:
            raise UsageError(f"--mesh: unknown axis {axis!r}", hint="axes: " + ", ".join(names))
        if axis in mesh:
            raise UsageError(f"--mesh: axis {axis} is given twice")
        number = _degree(degree)
        if number is None or number < 1:
            written = degree if len(degree) <= SHOWN_CHARS else f"{degree[:SHOWN_CHARS]}..."
            raise UsageError(
                f"--mesh: the degree of {axis} must be from 1 to {MAX_DEGREE}, not {written!r}"
            )
        mesh[axis] = number
    if not mesh:
        raise UsageError("--mesh: no axis given", hint="example: pp=2,dp_shard=4,tp=2")
    return mesh


# ---- what the trace shows -----------------------------------------------------------------------


def infer_strategy(facts: Mapping[str, AxisFacts], windows: int = 1) -> tuple[Strategy, str]:
    """The strategy that the collectives on each axis show, and why.

    Args:
        facts: axis -> what was seen on it. Joined axes (``dp_shard+cp``) count for each part;
            ``world`` and ``unknown`` say nothing.
        windows: (rank, device, step) windows the calls were counted over, > 0; the reason gives
            them per step and rank.
    """
    seen: dict[str, AxisFacts] = {}
    for joined, of_axis in facts.items():
        for axis in joined.split("+"):
            if axis not in (WORLD_AXIS, UNKNOWN_AXIS):
                seen.setdefault(axis, of_axis)
    words: list[tuple[str, str]] = []
    if "dp_shard" in seen:
        words.append(_sharded(seen["dp_shard"], windows, replicated="dp_replicate" in seen))
    elif "dp_replicate" in seen:
        words.append(("ddp", "gradients all-reduced over dp_replicate"))
    words += [_SIMPLE[axis](seen[axis]) for axis in _SIMPLE if axis in seen]
    if not words:
        return Strategy("none"), "no collective on any parallel axis"
    axes: dict[str, AxisExpectation] = {}
    for word, _ in words:
        axes |= _expectations(catalog.strategies()[word], None)
    axes = {
        a: replace(row, degree=seen[a].degree if a in seen else None) for a, row in axes.items()
    }
    names = tuple(word for word, _ in words)
    return Strategy("_".join(names), names, axes), "; ".join(why for _, why in words)


def _sharded(facts: AxisFacts, windows: int, *, replicated: bool) -> tuple[str, str]:
    gathers, scatters = facts.count("all_gather"), facts.count("reduce_scatter")
    if replicated:
        return (
            "hsdp",
            "weights gathered over dp_shard, gradients also all-reduced over dp_replicate",
        )
    broadcasts, reductions = facts.count("broadcast"), facts.count("all_reduce")
    if reductions and not gathers + scatters + broadcasts:
        return "ddp", "gradients all-reduced over dp_shard, parameters never gathered there"
    if not scatters and reductions:
        moved = f"{gathers} all-gathers" if gathers else f"{broadcasts} broadcasts"
        return "zero1", f"gradients all-reduced over dp_shard, parameters back by {moved}"
    each = [f"{round(count / windows, 1):g}" for count in (gathers, scatters)]
    ratio = f"per step and rank {each[0]} all-gathers, {each[1]} reduce-scatters over dp_shard"
    in_optimizer = facts.count("all_gather", Phase.OPTIMIZER) + facts.count(
        "broadcast", Phase.OPTIMIZER
    )
    if not scatters or in_optimizer > gathers / 2:
        return "zero1", f"{ratio}: parameters gathered after the optimizer"
    if gathers > REGATHER * scatters:
        return "fsdp", f"{ratio}: weights gathered again in backward"
    return "zero2", f"{ratio}: weights gathered once a step"


def _tensor(facts: AxisFacts) -> tuple[str, str]:
    if {"all_gather", "reduce_scatter"} <= facts.ops:
        return "tp", "activations gathered and scattered over tp (sequence parallel)"
    return "tp", "activations all-reduced over tp"


def _context(facts: AxisFacts) -> tuple[str, str]:
    if facts.count("all_to_all") and not facts.ops & {"send", "recv", "send_recv", "all_gather"}:
        return "ulysses", "all-to-all around attention over cp"
    return "cp", "keys and values exchanged around attention over cp"


def _pipeline(facts: AxisFacts) -> tuple[str, str]:
    return "pp", f"{', '.join(sorted(facts.ops))} between stages"


def _expert(facts: AxisFacts) -> tuple[str, str]:
    return "ep", f"{', '.join(sorted(facts.ops))} over ep"


_SIMPLE = {"tp": _tensor, "cp": _context, "pp": _pipeline, "ep": _expert}
