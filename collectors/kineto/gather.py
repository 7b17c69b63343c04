"""Sorts a trace's events by kind into rows, with exact times, counting everything left out."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

import numpy as np

from collectors.kineto import rows
from collectors.kineto.categories import NAME_KINDS, Kind, category_kind
from collectors.kineto.columns import number_in
from collectors.kineto.events import TIMES, Event, ExactTimes, args_of
from collectors.kineto.times import NULL, InexactTimesError, is_unpadded, to_ns
from collectors.kineto.window import Chunk

_MAX_DURATION_NS = 2**60  # 36 years: base + start + duration must stay within int64

_TIMES = attrgetter("ts", "dur")


@dataclass
class Gathered:
    """Everything read from one trace's events, before it becomes tables."""

    ops: rows.Rows
    ranges: rows.Rows
    device_ranges: rows.Rows
    launches: rows.Rows
    device: rows.Rows  # kernels, copies, memsets
    syncs: rows.Rows
    memory: rows.Rows
    tracks: rows.Rows
    op_comm: rows.CommRows
    device_comm: rows.CommRows
    events: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    repaired: Counter[str] = field(default_factory=Counter)
    skipped: Counter[str] = field(default_factory=Counter)
    unknown: Counter[str] = field(default_factory=Counter)
    process_names: dict[str, str] = field(default_factory=dict)
    thread_names: dict[tuple[str, str], str] = field(default_factory=dict)
    categories: set[str] = field(default_factory=set)
    phases: set[object] = field(default_factory=set)  # values of ``ph`` seen
    unpadded: bool | None = None  # None until a chunk's text had to be read

    def all_rows(self) -> Iterator[rows.Rows | rows.CommRows]:
        """Everything that holds columns."""
        yield from (self.ops, self.ranges, self.device_ranges, self.launches)
        yield from (self.device, self.syncs, self.memory, self.tracks)
        yield from (self.op_comm, self.device_comm)

    def rows_of(self, kind: Kind) -> rows.Rows:
        """The rows that events of a kind go to."""
        match kind:
            case Kind.OP:
                return self.ops
            case Kind.RANGE:
                return self.ranges
            case Kind.DEVICE_RANGE:
                return self.device_ranges
            case Kind.LAUNCH:
                return self.launches
            case Kind.KERNEL | Kind.MEMCPY | Kind.MEMSET:
                return self.device
            case Kind.SYNC:
                return self.syncs
            case Kind.MEMORY:
                return self.memory
            case _:
                return self.tracks


def new_gathered() -> Gathered:
    """Empty rows of every kind."""
    op_comm, device_comm = rows.CommRows(), rows.CommRows()
    return Gathered(
        ops=rows.op_rows(op_comm),
        ranges=rows.range_rows(),
        device_ranges=rows.range_rows(),
        launches=rows.launch_rows(),
        device=rows.device_rows(device_comm),
        syncs=rows.sync_rows(),
        memory=rows.memory_rows(),
        tracks=rows.track_rows(),
        op_comm=op_comm,
        device_comm=device_comm,
    )


class Gatherer:
    """Feeds chunks of events into :class:`Gathered`."""

    def __init__(self) -> None:
        self.out = new_gathered()
        self._open: list[Event] = []  # begin and end events, paired at the end

    def add(self, chunk: Chunk) -> None:
        """Take the events of one chunk."""
        events = [item for item in chunk.items if type(item) is Event]
        self.out.events += len(events)
        if others := len(chunk.items) - len(events):
            self.out.dropped["not an event object"] += others
        groups = _grouped(events)
        try:
            times = {key: self._times(*key, group) for key, group in groups.items()}
        except InexactTimesError:
            self._use_text_times(chunk)
            times = {key: self._times(*key, group) for key, group in groups.items()}
        for (phase, category), group in groups.items():
            self.out.phases.add(phase)
            start, duration = times[phase, category]
            if phase == "M":
                self._metadata(group)
            elif phase in ("B", "E"):
                self._open += group
            elif start is None:
                self.out.skipped[str(category or f"ph {phase}")] += len(group)
            else:
                end = start if duration is None else self._end(start, duration)
                self._put(category, *self._usable(group, start, end))

    def finish(self) -> Gathered:
        """Pair begin with end events and return everything."""
        times = self._ns([e.ts for e in self._open])
        pairs, unpaired = _paired(self._open, times)
        self._open = []
        self.out.dropped.update(unpaired)
        by_category: defaultdict[Any, list[tuple[int, int, Event]]] = defaultdict(list)
        for pair in pairs:
            by_category[pair[2].cat].append(pair)
        for category, members in by_category.items():
            start, end, events = zip(*members, strict=True)
            self._put(category, list(events), np.array(start), np.array(end))
        for source in self.out.all_rows():
            source.count_bad(self.out.repaired)
        return self.out

    # -- times --------------------------------------------------------------------------------

    def _ns(self, values: Sequence[Any]) -> np.ndarray:
        return to_ns(values, unpadded=bool(self.out.unpadded))

    def _use_text_times(self, chunk: Chunk) -> None:
        """Replace the events' times by their text in the file."""
        for event, exact in zip(chunk.items, TIMES.decode(chunk.text), strict=True):
            if type(event) is Event and type(exact) is ExactTimes:
                event.ts, event.dur = _text(exact.ts), _text(exact.dur)
        if self.out.unpadded is None:
            events = [e for e in chunk.items if type(e) is Event and e.ph == "X"]
            texts = [t for e in events for t in (e.ts, e.dur) if isinstance(t, str)]
            self.out.unpadded = is_unpadded(texts)

    def _times(
        self, phase: object, category: object, group: Sequence[Event]
    ) -> tuple[np.ndarray | None, np.ndarray | None]:
        """Start and duration in ns; None where events of this kind have none that matters.

        Raises:
            InexactTimesError: the events' text has to be read; nothing was counted yet.
        """
        kind = category_kind(category)
        if phase in ("B", "E") or (kind is Kind.MEMORY and phase in ("i", "I", "X")):
            return self._ns([e.ts for e in group]), None
        if phase != "X" or kind is Kind.SKIP:
            return None, None
        ts, durations = zip(*map(_TIMES, group), strict=True)
        return self._ns(ts), self._ns(durations)

    def _end(self, start: np.ndarray, duration: np.ndarray) -> np.ndarray:
        """Ends in ns; NULL, with the reason counted, where the duration is unusable."""
        faults = {
            "no duration": duration == NULL,
            "negative duration": (duration < 0) & (duration != NULL),
            "number out of range": duration > _MAX_DURATION_NS,
        }
        timed = start != NULL
        good = timed
        for reason, fault in faults.items():
            good = good & ~fault
            if count := int((fault & timed).sum()):
                self.out.dropped[reason] += count
        end: np.ndarray = np.where(good, start + duration, NULL)
        return end

    def _usable(
        self, group: list[Event], start: np.ndarray, end: np.ndarray
    ) -> tuple[list[Event], np.ndarray, np.ndarray]:
        if untimed := int((start == NULL).sum()):
            self.out.dropped["no timestamp"] += untimed
        good = end != NULL
        if good.all():
            return group, start, end
        return [e for e, g in zip(group, good, strict=True) if g], start[good], end[good]

    # -- rows ---------------------------------------------------------------------------------

    def _put(self, category: Any, group: list[Event], start: np.ndarray, end: np.ndarray) -> None:
        if not group:
            return
        kind = category_kind(category)
        if isinstance(category, str):
            self.out.categories.add(category.lower())
            if overrides := NAME_KINDS.get(category.lower()):
                self._put_by_name(overrides, kind or Kind.TRACK, group, start, end)
                return
        if kind is None:
            self.out.unknown[str(category)] += len(group)
            kind = Kind.TRACK
        if kind is Kind.MEMORY:
            memory = np.array([e.name == "[memory]" for e in group])
            self._put_rows(kind, memory, group, start, end)
            self.out.skipped["instant"] += int((~memory).sum())
        elif kind is Kind.SKIP:  # only begin/end pairs of a skipped category come here
            self.out.skipped[str(category)] += len(group)
        else:
            self.out.rows_of(kind).extend(group, start, end, kind.value)

    def _put_by_name(
        self,
        overrides: dict[str, Kind],
        kind: Kind,
        group: list[Event],
        start: np.ndarray,
        end: np.ndarray,
    ) -> None:
        kinds = [overrides.get(e.name, kind) if isinstance(e.name, str) else kind for e in group]
        for chosen in dict.fromkeys(kinds):
            mask = np.array([k is chosen for k in kinds])
            self._put_rows(chosen, mask, group, start, end)

    def _put_rows(
        self, kind: Kind, mask: np.ndarray, group: list[Event], start: np.ndarray, end: np.ndarray
    ) -> None:
        if mask.any():
            chosen = [e for e, m in zip(group, mask, strict=True) if m]
            self.out.rows_of(kind).extend(chosen, start[mask], end[mask], kind.value)

    def _metadata(self, group: list[Event]) -> None:
        for event in group:
            name = args_of(event).name
            if not isinstance(name, str):
                continue
            pid = track_id(event.pid)
            if event.name == "thread_name":
                self.out.thread_names[pid, track_id(event.tid)] = name
            elif event.name == "process_name":
                self.out.process_names[pid] = name


def track_id(value: object) -> str:
    """A pid or tid as text: the number in it when there is one (``stream 7`` is ``7``)."""
    number = number_in(value)
    return str(value) if number is None else str(number)


def _grouped(events: Sequence[Event]) -> dict[tuple[Any, Any], list[Event]]:
    groups: dict[tuple[Any, Any], list[Event]] = {}
    for event in events:
        try:
            groups[event.ph, event.cat].append(event)
        except KeyError:
            groups[event.ph, event.cat] = [event]
        except TypeError:  # a list or an object as category
            event.ph, event.cat = str(event.ph), None
            groups.setdefault((event.ph, None), []).append(event)
    return groups


def _paired(
    events: Sequence[Event], times: np.ndarray
) -> tuple[list[tuple[int, int, Event]], Counter[str]]:
    """Match begin and end events per thread, innermost first; they need not be in time order.

    Returns:
        (start, end, begin event) of each pair, and counts of what has no partner.
    """
    stacks: defaultdict[tuple[str, str], list[tuple[int, Event]]] = defaultdict(list)
    pairs, unpaired = [], Counter[str]()
    for row in np.argsort(times, kind="stable"):
        event, time = events[row], int(times[row])
        stack = stacks[str(event.pid), str(event.tid)]
        if time == NULL:
            unpaired["no timestamp"] += 1
        elif event.ph == "B":
            stack.append((time, event))
        elif stack:
            start, begin = stack.pop()
            pairs.append((start, time, begin))
        else:
            unpaired["end without begin"] += 1
    if left := sum(map(len, stacks.values())):
        unpaired["begin without end"] += left
    return pairs, unpaired


def _text(raw: Any) -> str | None:
    return None if raw is None else bytes(raw).decode().strip('"')
