"""Facts kept as data: kernel names, collectives, group descriptions, strategies, devices.

Each TOML file beside this module documents its own rows. Loading happens once per process and is
cheap; regular expressions are meant for *distinct* names, never for a column of events.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Any

from analyzer.catalog.devices import (
    Benchmark,
    Device,
    Sourced,
    benchmarks,
    device_keys,
    find_device,
)
from analyzer.catalog.files import load

__all__ = [
    "Benchmark",
    "Device",
    "GroupRow",
    "KernelMatch",
    "KernelRow",
    "OpRow",
    "RangeRow",
    "Sourced",
    "StrategyAxis",
    "StrategyRow",
    "benchmarks",
    "canonical_op",
    "described_axis",
    "device_keys",
    "dtype_bytes",
    "find_device",
    "group_rows",
    "host_collective",
    "is_fused_host_op",
    "is_pseudo_op",
    "kernel_rows",
    "match_kernel",
    "models",
    "op_family",
    "range_rows",
    "ranged_axis",
    "readable",
    "size_rule",
    "strategies",
]

# ---- kernels -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class KernelRow:
    """One row of ``kernels.toml``."""

    id: str
    pattern: re.Pattern[str]
    work: str
    family: str
    op: str | None
    axis: str | None
    examples: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class KernelMatch:
    """What a kernel's name says."""

    row: str
    work: str
    family: str
    op: str | None
    axis: str | None


@cache
def kernel_rows() -> tuple[KernelRow, ...]:
    """The kernel taxonomy in order."""
    return tuple(
        KernelRow(
            id=row["id"],
            pattern=re.compile(row["pattern"]),
            work=row["work"],
            family=row["family"],
            op=row.get("op"),
            axis=row.get("axis"),
            examples=tuple(row["examples"]),
        )
        for row in load("kernels")["kernel"]
    )


def match_kernel(name: str) -> KernelMatch | None:
    """The first row whose pattern occurs in the kernel's readable name, or None."""
    text = readable(name)
    for row in kernel_rows():
        found = row.pattern.search(text)
        if found is not None:
            spelled = next((value for value in found.groupdict().values() if value), None)
            op = canonical_op(spelled) if spelled else row.op
            return KernelMatch(row.id, row.work, row.family, op, row.axis)
    return None


def readable(name: str) -> str:
    """A kernel name without ``void``, anonymous namespaces and simple Itanium mangling.

    ``_ZN7deep_ep9internode8dispatchILb0EEEvPi`` becomes
    ``deep_ep::internode::dispatch ILb0EEEvPi``: enough to search in, not a demangler.
    """
    text = name.replace("(anonymous namespace)::", "").removeprefix("void ")
    if not text.startswith("_Z"):
        return text
    rest = text[2:].removeprefix("N").lstrip("KLV")
    parts: list[str] = []
    while (length := re.match(r"\d+", rest)) is not None:
        begin, size = length.end(), int(length[0])
        parts.append(rest[begin : begin + size])
        rest = rest[begin + size :]
    parts = [part for part in parts if not part.startswith("_GLOBAL__N_")]
    return f"{'::'.join(parts)} {rest}"


# ---- collectives -------------------------------------------------------------------------------


@cache
def canonical_op(name: str) -> str | None:
    """Canonical collective of a name as traces spell it, None when it is not one.

    ``pseudo`` events (``wait``) are not collectives either; ask :func:`is_pseudo_op`.
    """
    return _spellings().get(_reduced(name))


@cache
def is_pseudo_op(name: str) -> bool:
    """True for names that look like a collective but move nothing (``wait``)."""
    return _reduced(name) in load("ops")["pseudo"]


@cache
def host_collective(name: str) -> str | None:
    """Canonical collective a host operator issues, by its name alone.

    Only names with a communication namespace count (``c10d::allreduce_``, ``nccl:all_gather``,
    ``symm_mem::one_shot_all_reduce``): an unqualified ``gather`` may be anything.
    """
    space, separator, _ = name.rpartition("::" if "::" in name else ":")
    if not separator or space not in load("ops")["hosts"]["namespaces"]:
        return None
    return canonical_op(name)


@cache
def is_fused_host_op(name: str) -> bool:
    """True for host operators that compute and communicate in one (async tensor parallel)."""
    return name.rsplit("::", 1)[-1].rstrip("_") in load("ops")["hosts"]["fused"]


@cache
def op_family(name: str) -> str | None:
    """Family of the compute kernels a host operator launches, None when its name does not tell."""
    patterns: Mapping[str, str] = load("ops")["families"]
    return next((family for family, pattern in patterns.items() if re.search(pattern, name)), None)


@cache
def size_rule(op: str) -> str | None:
    """Which element count makes a message size S: in, out or max (nccl-tests convention)."""
    rule: str | None = load("ops")["size"].get(op)
    return rule


@cache
def dtype_bytes(name: str) -> int | None:
    """Bytes an element of a dtype as written, None when unknown."""
    text = re.sub(r"^(c10::|torch\.|at::|datatype\.)+", "", name.strip().lower())
    size: int | None = load("dtypes")["bytes"].get(text)
    return size


@cache
def _spellings() -> Mapping[str, str]:
    table: Mapping[str, list[str]] = load("ops")["ops"]
    return {spelling: op for op, spellings in table.items() for spelling in spellings}


def _reduced(name: str) -> str:
    bare = (
        re.split(r"[:./]", name)[-1] if "::" not in name else name.rsplit("::", 1)[-1].split(".")[0]
    )
    return bare.lower().replace("_", "").strip()


# ---- process groups ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class GroupRow:
    """One row of ``groups.toml``."""

    pattern: re.Pattern[str]
    axis: str
    framework: str
    examples: tuple[str, ...]


@cache
def group_rows() -> tuple[GroupRow, ...]:
    """The patterns of process-group descriptions in order."""
    return tuple(
        GroupRow(
            re.compile(row["pattern"], re.IGNORECASE),
            row["axis"],
            row["framework"],
            tuple(row["examples"]),
        )
        for row in load("groups")["group"]
    )


@cache
def described_axis(desc: str) -> str | None:
    """Axis a process-group description names.

    Returns None where it says nothing; ``dp`` where only the collectives on the group tell
    ``dp_shard`` from ``dp_replicate``.
    """
    for row in group_rows():
        if row.pattern.search(desc):
            return row.axis or None
    return None


@dataclass(frozen=True, slots=True)
class RangeRow:
    """One row of ``[[range]]`` in ``groups.toml``; empty ``ops`` means any collective."""

    pattern: re.Pattern[str]
    ops: frozenset[str]
    axis: str
    examples: tuple[tuple[str, str], ...]


@cache
def range_rows() -> tuple[RangeRow, ...]:
    """What ranges around a collective say about its axis, in order."""
    return tuple(
        RangeRow(
            re.compile(row["pattern"]),
            frozenset(row.get("ops", ())),
            row["axis"],
            tuple((name, op) for name, op in row["examples"]),
        )
        for row in load("groups")["range"]
    )


@cache
def ranged_axis(name: str, op: str) -> str | None:
    """Axis of a collective issued inside a range or operator of this name, None if it is silent."""
    return next(
        (
            row.axis
            for row in range_rows()
            if (not row.ops or op in row.ops) and row.pattern.search(name)
        ),
        None,
    )


# ---- strategies --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OpRow:
    """What a strategy expects of one collective on one axis."""

    critical: bool
    hidden_by: str = ""
    exposed_minimum: str = "none"


@dataclass(frozen=True, slots=True)
class StrategyAxis:
    """An axis a strategy occupies; one op of every set in ``required`` must occur."""

    axis: str
    required: tuple[frozenset[str], ...]
    ops: Mapping[str, OpRow]


@dataclass(frozen=True, slots=True)
class StrategyRow:
    """One row of ``strategies.toml``."""

    word: str
    title: str
    axes: tuple[StrategyAxis, ...]


@cache
def strategies() -> Mapping[str, StrategyRow]:
    """Strategy word (aliases included) -> row, in the order of the file."""
    table: dict[str, StrategyRow] = {}
    for row in load("strategies")["strategy"]:
        axes = tuple(
            StrategyAxis(
                axis["axis"],
                tuple(frozenset(ops) for ops in axis["required"]),
                {op: OpRow(**facts) for op, facts in row["ops"][axis["axis"]].items()},
            )
            for axis in row["axes"]
        )
        made = StrategyRow(row["word"], row["title"], axes)
        table |= dict.fromkeys((row["word"], *row.get("aliases", ())), made)
    return MappingProxyType(table)


# ---- models ------------------------------------------------------------------------------------


@cache
def models() -> Mapping[str, Mapping[str, Any]]:
    """Model name (aliases included) -> its row of ``models.toml``."""
    rows = load("models")
    aliased = {alias: row for row in rows.values() for alias in row.get("aliases", ())}
    return MappingProxyType({**aliased, **rows})
