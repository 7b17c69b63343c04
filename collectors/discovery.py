"""Which rank a trace is, and which traces belong to the job."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import PurePath

import polars as pl

from analyzer.errors import DuplicateRankError, InputError, UsageError
from analyzer.model import FILE_ORDER, LeftOut, RankTrace
from collectors.kineto.metadata import listed_ranks
from collectors.sources import Source, natural_key

FILE_NAME = "file name"

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
    return replace(trace, meta=replace(trace.meta, rank=rank, rank_source=FILE_NAME))


def with_rank_from_groups(trace: RankTrace) -> RankTrace:
    """The trace with the rank its collectives tell, when nothing else does."""
    rank = None if trace.meta.rank is not None else rank_from_groups(trace.comm_args)
    if rank is None:
        return trace
    return replace(trace, meta=replace(trace.meta, rank=rank, rank_source="process groups"))


def rank_from_groups(comm_args: pl.DataFrame) -> int | None:
    """The one rank that stands at this process's place in all its groups, None without one.

    ``Rank`` on a host operator is the process's own place in the group, but the peer's for sends
    and receives.

    Args:
        comm_args: schema.COMM_ARGS of the trace.
    """
    own = (pl.col("source").cast(pl.String) == "op") & ~pl.col("collective").cast(
        pl.String
    ).str.contains("(?i)send|recv|p2p|coalesced")
    told = comm_args.filter(own).select("group_ranks", "peer").drop_nulls().unique()
    found = set()
    for text, place in told.iter_rows():
        ranks = listed_ranks(text)
        if 0 <= place < len(ranks):
            found.add(ranks[place])
    return found.pop() if len(found) == 1 else None


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
        InputError: two traces are of jobs of different sizes.
        UsageError: ``rank`` with several traces, or against what the trace says.
    """
    training, left_out = _training_only(traces)
    _require_one_job(training)
    if rank is not None:
        return [_stated(training, rank)], left_out
    known = [t for t in training if t.meta.rank is not None]
    anonymous = [t for t in training if t.meta.rank is None]
    if not known and len(anonymous) == 1:
        return [_assumed(anonymous[0], None, "assumed 0")], left_out
    if not known:
        ordered = sorted(anonymous, key=lambda t: natural_key(t.meta.path))
        known = [_assumed(t, i, FILE_ORDER) for i, t in enumerate(ordered)]
    else:
        reason = "neither the trace nor its file name tells the rank, unlike the others'"
        left_out += [LeftOut(t.meta.path, reason) for t in anonymous]
    _require_distinct(known)
    return sorted(known, key=lambda t: t.rank), left_out


def _stated(traces: Sequence[RankTrace], rank: int) -> RankTrace:
    """The only trace under the rank the user gives: against its file name, not its content."""
    if len(traces) != 1:
        raise UsageError(f"--rank {rank}: {len(traces)} traces were given, it names one")
    meta = traces[0].meta
    if meta.rank == rank:
        return traces[0]
    if meta.rank is not None and meta.rank_source != FILE_NAME:
        raise UsageError(
            f"--rank {rank}: {meta.path} says it is rank {meta.rank}",
            "--rank is for a trace that does not say",
        )
    return _assumed(traces[0], rank, "--rank")


def _require_one_job(traces: Iterable[RankTrace]) -> None:
    """Figures of different jobs have no mean: all traces that tell a world size tell the same."""
    sizes: dict[int, str] = {}
    for trace in traces:
        if trace.meta.world_size:
            sizes.setdefault(trace.meta.world_size, trace.meta.path)
    if len(sizes) > 1:
        (one, first), (other, second), *_ = sizes.items()
        raise InputError(
            f"{first} is of a job of {one} ranks, {second} of {other}: not one job",
            "give one job's files",
        )


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
    if any(t.meta.rank_source == "distributedInfo" for ts in by_rank.values() for t in ts):
        return "several captures of one job? give one iteration's directory"
    return "the ranks were read from the file names: give one job's files"


def nothing_usable(left_out: Sequence[LeftOut]) -> InputError:
    """The error when every input was left out."""
    first = left_out[0]
    more = f" (and {len(left_out) - 1} more)" if len(left_out) > 1 else ""
    return InputError(f"no usable trace: {first.path}: {first.reason}{more}")
