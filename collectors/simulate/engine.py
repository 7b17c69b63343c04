"""Runs tapes: gives every host and device event its time.

The rules are CUDA's. A host thread issues in order and runs ahead of the device. A stream runs its
work in order; work starts when the stream is free, the events it waits for are done and its launch
has arrived. A collective's kernel starts on each rank by those rules and ends on all members
together, ``transfer_ns`` after the last one started. So every time is a maximum over earlier times
plus a duration, and the order in which ranks are advanced does not change the result. Kernels do
not slow each other down.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from collectors.simulate.tape import (
    Begin,
    Busy,
    Collective,
    End,
    Instruction,
    Launch,
    Record,
    Stream,
    Switch,
    Synchronize,
    Tape,
    Thread,
    Wait,
    Work,
)


class DeadlockError(RuntimeError):
    """Ranks wait for each other: the programs' collectives do not match."""


@dataclass(slots=True)
class HostEvent:
    """A host operator, range or runtime call."""

    category: str  # cpu_op, user_annotation, cuda_runtime, cuda_driver
    name: str
    thread: Thread
    start_ns: int
    end_ns: int = 0
    external_id: int = 0
    correlation: int | None = None
    args: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class DeviceEvent:
    """Work that ran on a stream; ``step`` is the one in which the host launched it."""

    work: Work
    stream: Stream
    step: int
    launch_start_ns: int
    launch_end_ns: int
    thread: Thread
    correlation: int
    external_id: int
    duration_ns: int
    seq: int = 0  # of a collective within its group
    start_ns: int = -1
    end_ns: int = -1


@dataclass(slots=True)
class StepMark:
    """Host side of one step."""

    number: int
    start_ns: int
    end_ns: int = -1


@dataclass(slots=True)
class RankRecord:
    """All that happened on one rank, in true time from the job's start."""

    rank: int
    host: list[HostEvent] = field(default_factory=list)
    device: list[DeviceEvent] = field(default_factory=list)
    steps: list[StepMark] = field(default_factory=list)


def run(tapes: Sequence[Tape], *, jitter: float = 0.0, seed: int = 0) -> list[RankRecord]:
    """Run one tape per rank to the end.

    Args:
        tapes: Tapes; ``tapes[i].rank`` need not be ``i``.
        jitter: Relative half-width of uniform noise on durations.
        seed: Seed of the noise; each rank and each collective draws from its own stream.

    Raises:
        DeadlockError: A collective is never joined by all members, or members disagree on it.
    """
    engine = _Engine(jitter, seed)
    ranks = [_Rank(tape, engine) for tape in tapes]
    engine.ranks = {rank.record.rank: rank for rank in ranks}
    ready = deque(ranks)
    while ready:
        ready.popleft().advance()
        ready.extend(engine.take_unblocked())
    stuck = [str(rank.record.rank) for rank in ranks if not rank.finished]
    if stuck or engine.instances:
        waiting = "; ".join(f"{key[0]} #{key[-1]}" for key in engine.instances)
        message = f"ranks {', '.join(stuck) or 'none'} blocked, collectives open: {waiting}"
        raise DeadlockError(message)
    return [rank.record for rank in ranks]


@dataclass(slots=True)
class _Instance:
    """A collective some members have reached."""

    collective: Collective
    members: int
    arrived: list[tuple[_Queue, DeviceEvent]] = field(default_factory=list)


class _Queue:
    """One stream: what is on it and when it is free."""

    def __init__(self, rank: _Rank) -> None:
        self.rank = rank
        self.items: deque[DeviceEvent | Record | Wait] = deque()
        self.free_ns = 0


class _Engine:
    """What ranks share: open collectives and who can go on."""

    def __init__(self, jitter: float, seed: int) -> None:
        self.jitter = jitter
        self.seed = seed
        self.ranks: dict[int, _Rank] = {}
        self.instances: dict[tuple[Any, ...], _Instance] = {}
        self._unblocked: list[_Rank] = []

    def take_unblocked(self) -> list[_Rank]:
        """Ranks whose synchronisation ended since the last call."""
        ranks, self._unblocked = self._unblocked, []
        return ranks

    def drain(self, queue: _Queue) -> None:
        """Run everything that can run from this stream on, on any rank."""
        todo = deque([queue])
        while todo:
            stream = todo.popleft()
            while stream.items:
                woken = self._run_head(stream)
                if woken is None:
                    break
                todo.extend(woken)

    def _run_head(self, queue: _Queue) -> list[_Queue] | None:
        """Run the first item; the streams that may now go on, None when it has to wait."""
        item = queue.items[0]
        if isinstance(item, Record):
            queue.items.popleft()
            if queue.rank.complete(item.event, queue.free_ns):
                self._unblocked.append(queue.rank)
            return queue.rank.waiters.pop(item.event, [])
        if isinstance(item, Wait):
            done_ns = queue.rank.events.get(item.event)
            if done_ns is None:
                queue.rank.waiters.setdefault(item.event, []).append(queue)
                return None
            queue.items.popleft()
            queue.free_ns = max(queue.free_ns, done_ns)
            return []
        if item.start_ns < 0:
            latency = queue.rank.tape.host.start_latency_ns
            item.start_ns = max(queue.free_ns, item.launch_end_ns + latency)
            if item.work.collective is not None:
                return self._arrive(item.work.collective, queue, item)
            self._finish(queue, item, item.start_ns + item.duration_ns)
            return []
        return None  # a collective that has started and waits for its members

    def _arrive(
        self, collective: Collective, queue: _Queue, event: DeviceEvent
    ) -> list[_Queue] | None:
        key = instance_key(collective, queue.rank.record.rank, event.seq)
        members = collective.group.size if collective.peer is None else 2
        instance = self.instances.setdefault(key, _Instance(collective, members))
        first = instance.collective
        if (first.nelems, first.dtype) != (collective.nelems, collective.dtype):
            message = f"{key[0]} #{event.seq}: members disagree on the size"
            raise DeadlockError(message)
        instance.arrived.append((queue, event))
        if len(instance.arrived) < members:
            return None
        del self.instances[key]
        transfer = self.noisy(collective.transfer_ns, Random(f"{self.seed}/{key}"))  # noqa: S311
        end_ns = transfer + max(joined.start_ns for _, joined in instance.arrived)
        for member, joined in instance.arrived:
            self._finish(member, joined, end_ns)
        return [member for member, _ in instance.arrived]

    def _finish(self, queue: _Queue, event: DeviceEvent, end_ns: int) -> None:
        event.end_ns = end_ns
        queue.free_ns = end_ns
        queue.items.popleft()

    def noisy(self, ns: int, random: Random) -> int:
        """A duration with its share of jitter."""
        if not self.jitter:
            return ns
        return round(ns * (1 + self.jitter * (2 * random.random() - 1)))


def instance_key(collective: Collective, rank: int, seq: int) -> tuple[Any, ...]:
    """What is equal for all members of one collective or transfer, and for nothing else."""
    if collective.peer is None:
        return (collective.op, collective.group.name, collective.group.ranks, seq)
    ends = (rank, collective.peer) if collective.op == "send" else (collective.peer, rank)
    return ("send/recv", collective.group.name, ends, seq)


class _Rank:
    """One rank's host: executes its tape until the end or a synchronisation that has to wait."""

    def __init__(self, tape: Tape, engine: _Engine) -> None:
        self.tape = tape
        self.engine = engine
        self.record = RankRecord(tape.rank)
        self.events: dict[int, int] = {}  # event -> completion
        self.waiters: dict[int, list[_Queue]] = {}
        self._queues: dict[Stream, _Queue] = {}
        self._now = 0
        self._thread = Thread.MAIN
        self._open: list[tuple[HostEvent, StepMark | None]] = []
        self._position = 0
        self._pending: set[int] = set()  # events a synchronisation waits for
        self._sync_events = 0
        self._correlation = 0
        self._external = 0
        self._seq: dict[tuple[Any, ...], int] = {}
        self._random = Random(f"{engine.seed}/{tape.rank}")  # noqa: S311 - noise, not secrets

    @property
    def finished(self) -> bool:
        """Whether the host came to the end and every stream is empty."""
        done = self._position >= len(self.tape.instructions) and not self._pending
        return done and all(not queue.items for queue in self._queues.values())

    def advance(self) -> None:
        """Execute instructions until the end or a synchronisation that cannot end yet."""
        while not self._pending and self._position < len(self.tape.instructions):
            instruction = self.tape.instructions[self._position]
            self._position += 1
            self._execute(instruction)

    def complete(self, event: int, at_ns: int) -> bool:
        """Note that an event is done; whether a blocked host can go on now."""
        self.events[event] = at_ns
        if event not in self._pending:
            return False
        self._pending.discard(event)
        call = self._open[-1][0]
        returns = at_ns + self.tape.host.sync_return_ns
        self._now = max(self._now, returns)
        if self._pending:
            return False
        call.end_ns = self._now
        self._open.pop()
        return True

    def _execute(self, instruction: Instruction) -> None:
        match instruction:
            case Busy(ns):
                self._now += self.engine.noisy(ns, self._random)
            case Begin():
                self._begin(instruction)
            case End():
                self._end()
            case Switch(thread):
                self._thread = thread
            case Launch(work, stream):
                self._launch(work, stream)
            case Record(_, stream):
                self._call("cudaEventRecordWithFlags", self.tape.host.event_ns)
                self._put(stream, instruction)
            case Wait(_, stream):
                self._call("cudaStreamWaitEvent", self.tape.host.event_ns)
                self._put(stream, instruction)
            case Synchronize(stream):
                self._synchronize(stream)

    def _begin(self, begin: Begin) -> None:
        self._external += 1
        event = HostEvent(
            begin.category, begin.name, self._thread, self._now,
            external_id=self._external, args=begin.args,
        )  # fmt: skip
        self.record.host.append(event)
        mark = None
        if begin.step is not None:
            mark = StepMark(begin.step, self._now)
            self.record.steps.append(mark)
        self._open.append((event, mark))

    def _end(self) -> None:
        event, mark = self._open.pop()
        event.end_ns = self._now
        if mark is not None:
            mark.end_ns = self._now

    def _launch(self, work: Work, stream: Stream) -> None:
        call = self._call(work.call, self.tape.host.launch_ns)
        event = DeviceEvent(
            work, stream, self.record.steps[-1].number if self.record.steps else -1,
            call.start_ns, call.end_ns, self._thread, call.correlation or 0, call.external_id,
            self.engine.noisy(work.ns, self._random),
        )  # fmt: skip
        if work.collective is not None:
            counter = instance_key(work.collective, self.record.rank, 0)[1:]
            event.seq = self._seq[counter] = self._seq.get(counter, 0) + 1
            self._note_collective(work.collective, event.seq)
        self.record.device.append(event)
        self._put(stream, event)

    def _note_collective(self, collective: Collective, seq: int) -> None:
        """Give the operator around a collective's launch its arguments."""
        for event, _ in reversed(self._open):
            if event.category == "cpu_op":
                event.args = {"collective": (collective, seq)}
                return

    def _call(self, name: str, ns: int) -> HostEvent:
        """A runtime or driver call of the current operator."""
        start_ns = self._now
        self._now += self.engine.noisy(ns, self._random)
        self._correlation += 1
        category = "cuda_driver" if name.startswith("cuL") else "cuda_runtime"
        event = HostEvent(
            category, name, self._thread, start_ns, self._now,
            self._enclosing_op(), self._correlation,
        )  # fmt: skip
        self.record.host.append(event)
        return event

    def _enclosing_op(self) -> int:
        """External id of the innermost operator around, 0 outside all."""
        for event, _ in reversed(self._open):
            if event.category == "cpu_op":
                return event.external_id
        return 0

    def _put(self, stream: Stream, item: DeviceEvent | Record | Wait) -> None:
        queue = self._queues.setdefault(stream, _Queue(self))
        blocked = bool(queue.items)  # its first item waits already, and will be woken
        queue.items.append(item)
        if not blocked:
            self.engine.drain(queue)

    def _synchronize(self, stream: Stream | None) -> None:
        name = "cudaDeviceSynchronize" if stream is None else "cudaStreamSynchronize"
        call = self._call(name, self.tape.host.sync_call_ns)
        streams = list(self._queues) if stream is None else [stream]
        if not streams:
            return
        self._open.append((call, None))
        marks = [Record(-self._sync_events - i - 1, s) for i, s in enumerate(streams)]
        self._sync_events += len(marks)
        self._pending = {mark.event for mark in marks}
        for mark in marks:
            self._put(mark.stream, mark)
