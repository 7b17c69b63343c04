"""Readers of what training jobs write: profiler traces in, typed tables out.

:func:`open_job` is the one entry: it expands paths, reads every rank's trace (through the cache,
when given one) and says which inputs were left out and why. Importing this package is cheap;
polars loads with the first call.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from analyzer.model import Job
    from collectors.cache import Cache

__all__ = ["Progress", "open_job"]


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the reading of one input is. Bytes are those on disk (compressed)."""

    path: str
    bytes_done: int
    bytes_total: int


def open_job(
    paths: Sequence[str | os.PathLike[str]],
    *,
    rank: int | None = None,
    cache: Cache | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Job:
    """Read all traces of one training job.

    Args:
        paths: files, directories (searched recursively), globs; ``.json``, ``.json.gz``,
            ``.json.zst`` and ``.zip`` archives of them. The content decides, not the suffix.
        rank: the rank of a single trace that does not name its own.
        cache: where parsed traces are kept; None reads every file anew.
        progress: called while files are read.

    Returns:
        The ranks in order, and the inputs left out with the reason.

    Raises:
        InputError: nothing usable was found, or the only file named is unusable.
        DuplicateRankError: two files claim the same rank.
        UsageError: ``rank`` was given for more than one trace.
    """
    from collectors.job import open_job as read

    return read(paths, rank=rank, cache=cache, progress=progress)
