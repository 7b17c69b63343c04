"""Kineto and other Chrome-format traces.

``stream`` finds events in bytes, ``gather`` sorts them by kind with exact times, ``tables`` builds
the typed tables; ``categories`` holds what each producer calls things.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from analyzer.model import RankTrace
    from collectors import Progress


def read_trace(
    path: str | os.PathLike[str],
    *,
    rank: int | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> RankTrace:
    """Read one trace file, without cache.

    Args:
        path: a ``.json``, ``.json.gz``, ``.json.zst`` file or a ``.zip`` with one of them.
        rank: overrides the rank the trace names.
        progress: called while the file is read.

    Raises:
        InputError: the file is missing, or no usable trace.
    """
    from analyzer.errors import InputError
    from collectors.discovery import with_rank_from_name
    from collectors.kineto.reader import read_source
    from collectors.sources import expand

    sources, _ = expand([path])
    if len(sources) > 1:
        raise InputError(f"{os.fspath(path)}: holds {len(sources)} traces", "use open_job")
    return with_rank_from_name(read_source(sources[0], rank=rank, progress=progress), sources[0])
