"""From paths to a job: expand, read (through the cache), settle ranks."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from analyzer.errors import InputError, NotATraceError
from analyzer.model import Job, LeftOut, RankTrace
from collectors.discovery import (
    nothing_usable,
    settle_ranks,
    with_rank_from_groups,
    with_rank_from_name,
)
from collectors.kineto.reader import read_source
from collectors.sources import Source, content_key, expand

if TYPE_CHECKING:
    from collectors import Progress
    from collectors.cache import Cache


def open_job(
    paths: Sequence[str | os.PathLike[str]],
    *,
    rank: int | None = None,
    cache: Cache | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Job:
    """See :func:`collectors.open_job`."""
    sources, explicit = expand(paths)
    traces: list[RankTrace] = []
    left_out: list[LeftOut] = []
    for source in sources:
        try:
            traces.append(_read(source, cache, progress))
        except InputError as error:
            if explicit and len(sources) == 1:
                raise
            bystander = isinstance(error, NotATraceError) and not explicit
            left_out.append(LeftOut(source.label, _reason(error, source), bystander))
    if not traces:
        raise nothing_usable(left_out)
    _return_memory()
    ranks, not_training = settle_ranks(traces, rank)
    return Job(ranks=tuple(ranks), left_out=(*left_out, *not_training))


def _read(
    source: Source, cache: Cache | None, progress: Callable[[Progress], None] | None
) -> RankTrace:
    if cache is None:
        return _ranked(read_source(source, progress=progress), source)
    key = content_key(source)
    trace = cache.load(key)
    if trace is None:
        trace = read_source(source, progress=progress)
        cache.store(key, trace)
    return _ranked(relabeled(trace, source), source)


def _ranked(trace: RankTrace, source: Source) -> RankTrace:
    return with_rank_from_groups(with_rank_from_name(trace, source))


def relabeled(trace: RankTrace, source: Source) -> RankTrace:
    """The trace under the name it has now: equal files share one cache entry."""
    from dataclasses import replace

    return replace(trace, meta=replace(trace.meta, path=source.label))


def _return_memory() -> None:
    """Hand the decoder's freed memory back to the system where the C library can.

    glibc keeps it for the process otherwise, and what follows would come on top: a sixth of the
    peak on a trace of 1 GB.
    """
    if not sys.platform.startswith("linux"):
        return
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # musl has none
    if trim is not None:
        trim(0)


def _reason(error: InputError, source: Source) -> str:
    return str(error).removeprefix(f"{source.label}: ")
