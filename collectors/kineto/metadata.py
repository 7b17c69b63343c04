"""Facts about a trace outside its events: rank, world, devices, process groups, mesh."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from analyzer.model import ProcessGroup

MAX_RANKS = 2**20  # no job has more: above, the number is damaged
EMBEDDED_KEY = "meshscope"
"""Metadata key under which the project's own collector writes what Kineto does not."""

_MAX_BASE_NS = 2**62 - 2**60  # year 2079; with the largest time and duration still int64


def as_int(value: object) -> int | None:
    """An integer from JSON, also when it was written as a string; None for anything else."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, str) and re.fullmatch(r"\s*-?\d{1,20}\s*", value):
        return int(value)
    return None


def as_rank(value: object) -> int | None:
    """A rank or a number of ranks; None for anything no job has, such as -1 for `not set`."""
    number = as_int(value)
    return number if number is not None and 0 <= number <= MAX_RANKS else None


def distributed_info(metadata: Mapping[str, Any]) -> Mapping[str, Any]:
    """The ``distributedInfo`` object, empty when missing or unusable."""
    info = metadata.get("distributedInfo")
    if isinstance(info, str):  # some tools write it as a string of JSON
        try:
            info = json.loads(info)
        except ValueError:
            return {}
    return info if isinstance(info, dict) else {}


def process_groups(info: Mapping[str, Any]) -> tuple[ProcessGroup, ...]:
    """Process groups of ``distributedInfo.pg_config``.

    Early 2024 files name a group ``uid``; on-demand traces write ``ranks`` as a string, perhaps
    cut with ``...``, in which case the ranks are unknown and only the size counts.
    """
    config = info.get("pg_config")
    entries = config.values() if isinstance(config, dict) else config
    if not isinstance(entries, Iterable) or isinstance(entries, str):
        return ()
    return tuple(_group(e) for e in entries if isinstance(e, dict))


def _group(entry: Mapping[str, Any]) -> ProcessGroup:
    ranks = listed_ranks(entry.get("ranks"))
    size = as_int(entry.get("pg_size", entry.get("group_size")))
    name = entry.get("pg_name", entry.get("uid", entry.get("name", "")))
    return ProcessGroup(
        name=str(name),
        desc=str(entry.get("pg_desc", entry.get("desc", "")) or ""),
        ranks=ranks if size is None or len(ranks) == size else (),
        size=len(ranks) if size is None else size,
        backend=str(entry.get("backend_config", entry.get("backend", "")) or ""),
    )


def listed_ranks(value: object) -> tuple[int, ...]:
    """The ranks of a group as written: a list, its text, or a table; empty when cut or broken."""
    if isinstance(value, str):
        if "..." in value:
            return ()
        return tuple(int(r) for r in re.findall(r"\d+", value))
    if isinstance(value, dict):  # {"global rank": "group rank"}
        value = list(value)
    if not isinstance(value, list):
        return ()
    ranks = [as_int(r) for r in value]
    return tuple(r for r in ranks if r is not None) if None not in ranks else ()


def device_names(metadata: Mapping[str, Any]) -> tuple[str, ...]:
    """Names in ``deviceProperties`` (``computeProperties`` before 2021-09)."""
    entries = metadata.get("deviceProperties") or metadata.get("computeProperties")
    if not isinstance(entries, list):
        return ()
    names = [e.get("name") for e in entries if isinstance(e, dict)]
    return tuple(str(n) for n in names if n)


def embedded_mesh(embedded: Mapping[str, Any]) -> dict[str, int] | None:
    """The mesh the collector wrote: axis -> degree, outermost first."""
    mesh = embedded.get("mesh")
    if not isinstance(mesh, dict):
        return None
    sizes = {str(axis): as_int(size) for axis, size in mesh.items()}
    return {axis: size for axis, size in sizes.items() if size is not None and size > 0} or None


def base_ns(metadata: Mapping[str, Any]) -> int:
    """Unix time in ns that ``ts`` counts from; 0 when ``ts`` is absolute or the base unusable."""
    base = as_int(metadata.get("baseTimeNanoseconds")) or 0
    return base if 0 <= base < _MAX_BASE_NS else 0
