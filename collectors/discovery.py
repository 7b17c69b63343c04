"""Which rank a trace is, and which traces belong to the job."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import PurePath

from analyzer.errors import DuplicateRankError, InputError, UsageError
from analyzer.model import LeftOut, RankTrace
from collectors.sources import Source, natural_key

# Launchers' ways to put the rank into a file name, most explicit first.
_RANK_IN_NAME: tuple[re.Pattern[str], ...] = tuple(
    re.compile(p, re.IGNORECASE)
    for p in (
        # rank0, rank-0., _rank_3_, rank[3], global_rank_9
        r"(?<![a-z])(?:global[-_.]?)?rank[-_.=\[ ]*(\d{1,7})(?!\d)",
        r"(?<![a-z])trainer[-_.]?(\d{1,7})(?!\d)",
        r"(?<![a-z])worker[-_.]?(\d{1,7})(?!\d)",  # worker0.pt.trace.json
        r"^(\d{1,7})(?:[-_.](?:pt[-_.])?trace)?\.(?:pt\.trace\.)?json",  # 3.json, 0_trace.json
    )
)


def rank_from_name(name: str) -> int | None:
    """The rank a file or archive member is named after, None when its name tells none.

    Looks at the file name, then at its directory (``rank3/trace.json``). The default name of
    ``tensorboard_trace_handler``, ``host_1234.5678.pt.trace.json``, holds a process id and a time,
    no rank.
    """
    path = PurePath(name.replace("\\", "/"))
    for pattern in _RANK_IN_NAME:
        if match := pattern.search(path.name):
            return int(match.group(1))
    match = _RANK_IN_NAME[0].search(path.parent.name)
    return int(match.group(1)) if match else None


def with_rank_from_name(trace: RankTrace, source: Source) -> RankTrace:
    """The trace with the rank of its file name, when it names none itself."""
    if trace.meta.rank is not None:
        return trace
    rank = rank_from_name(source.member) if source.member else None
    if rank is None:
        rank = rank_from_name(source.path)
    if rank is None:
        return trace
    return replace(trace, meta=replace(trace.meta, rank=rank, rank_source="file name"))


def settle_ranks(
    traces: Sequence[RankTrace], rank: int | None = None
) -> tuple[list[RankTrace], list[LeftOut]]:
    """Give every trace of the job its rank, and leave out what is no training rank.

    Args:
        traces: as read; ranks where the trace or its file name told them.
        rank: the user's word for a single trace.

    Returns:
        The traces by rank, and those left out.

    Raises:
        DuplicateRankError: two traces claim the same rank.
        UsageError: ``rank`` with several traces.
    """
    training, left_out = _training_only(traces)
    if rank is not None:
        if len(training) != 1:
            raise UsageError(f"--rank {rank}: {len(training)} traces were given, it names one")
        return [_assumed(training[0], rank, "--rank")], left_out
    known = [t for t in training if t.meta.rank is not None]
    anonymous = [t for t in training if t.meta.rank is None]
    if not known and len(anonymous) == 1:
        return [_assumed(anonymous[0], None, "assumed 0")], left_out
    if not known:
        ordered = sorted(anonymous, key=lambda t: natural_key(t.meta.path))
        known = [_assumed(t, i, "assumed from file order") for i, t in enumerate(ordered)]
    else:
        reason = "neither the trace nor its file name tells the rank, unlike the others'"
        left_out += [LeftOut(t.meta.path, reason) for t in anonymous]
    _require_distinct(known)
    return sorted(known, key=lambda t: t.rank), left_out


def _assumed(trace: RankTrace, rank: int | None, origin: str) -> RankTrace:
    return replace(trace, meta=replace(trace.meta, rank=rank, rank_source=origin))


def _training_only(traces: Sequence[RankTrace]) -> tuple[list[RankTrace], list[LeftOut]]:
    """Launchers and data loaders get traced, too: no device work where others have it."""
    with_device = [not t.device.is_empty() for t in traces]
    if all(with_device) or not any(with_device):
        return list(traces), []
    reason = (
        "no device activity, unlike the other traces: not a training process, or tracing failed"
    )
    left_out = [
        LeftOut(t.meta.path, reason) for t, has in zip(traces, with_device, strict=True) if not has
    ]
    return [t for t, has in zip(traces, with_device, strict=True) if has], left_out


def _require_distinct(traces: Iterable[RankTrace]) -> None:
    by_rank: defaultdict[int, list[RankTrace]] = defaultdict(list)
    for trace in traces:
        by_rank[trace.rank].append(trace)
    for rank, claimants in sorted(by_rank.items()):
        if len(claimants) > 1:
            first, second = claimants[0].meta, claimants[1].meta
            raise DuplicateRankError(
                f"{first.path} and {second.path} both claim rank {rank}",
                _duplicate_hint(by_rank),
            )


def _duplicate_hint(by_rank: dict[int, list[RankTrace]]) -> str:
    worlds = Counter(t.meta.world_size for ts in by_rank.values() for t in ts)
    if len([w for w in worlds if w is not None]) > 1:
        return "the traces are of jobs of different sizes: give one job's files"
    if any(t.meta.rank_source == "distributedInfo" for ts in by_rank.values() for t in ts):
        return "several captures of one job? give one iteration's directory"
    return "the ranks were read from the file names: give one job's files"


def nothing_usable(left_out: Sequence[LeftOut]) -> InputError:
    """The error when every input was left out."""
    first = left_out[0]
    more = f" (and {len(left_out) - 1} more)" if len(left_out) > 1 else ""
    return InputError(f"no usable trace: {first.path}: {first.reason}{more}")
