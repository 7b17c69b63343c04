"""The parts of an event that are read; everything else in its JSON is skipped by the decoder.

Fields are typed ``Any`` on purpose: Kineto writes ``bytes`` as a number on kernels and as a string
on runtime calls, ``pid`` as a number or ``"Spans"``, ids as strings. A strict type would reject the
whole chunk for one of them; columns decide what a value is worth.
"""

from __future__ import annotations

from typing import Any, cast

import msgspec


def _named(name: str) -> Any:
    return msgspec.field(default=None, name=name)


class Args(msgspec.Struct, gc=False):
    """``args`` of an event, in the order Kineto writes them (the decoder tries the next first)."""

    external_id: Any = _named("External id")
    device: Any = None
    stream: Any = None
    correlation: Any = None
    bytes: Any = None
    graph_id: Any = _named("graph id")
    concrete_inputs: msgspec.Raw = _named("Concrete Inputs")
    input_types: msgspec.Raw = _named("Input type")
    input_dims: msgspec.Raw = _named("Input Dims")
    fwd_tid: Any = _named("Fwd thread id")
    sequence: Any = _named("Sequence number")
    collective: Any = _named("Collective name")
    in_nelems: Any = _named("In msg nelems")
    out_nelems: Any = _named("Out msg nelems")
    group_size: Any = _named("Group size")
    dtype: Any = None
    in_split: Any = _named("In split size")
    out_split: Any = _named("Out split size")
    group_name: Any = _named("Process Group Name")
    group_desc: Any = _named("Process Group Description")
    group_ranks: Any = _named("Process Group Ranks")
    seq: Any = _named("Seq")
    comms_id: Any = _named("Comms Id")
    src_rank: Any = _named("Src Rank")
    dst_rank: Any = _named("Dst Rank")
    peer: Any = _named("Rank")
    rank_start: Any = _named("Global rank start")
    rank_stride: Any = _named("Global rank stride")
    total_reserved: Any = _named("Total Reserved")
    total_allocated: Any = _named("Total Allocated")
    memory_bytes: Any = _named("Bytes")
    address: Any = _named("Addr")
    device_id: Any = _named("Device Id")
    device_type: Any = _named("Device Type")
    sync_kind: Any = _named("cuda_sync_kind")
    wait_on_stream: Any = None
    wait_on_correlation: Any = _named("wait_on_cuda_event_record_corr_id")
    name: Any = None  # metadata events
    labels: Any = None
    # names of other eras and producers
    external_id_old: Any = _named("external id")  # torch 1.8 .. 1.12
    input_dims_old: msgspec.Raw = _named("Input dims")
    in_nelems_old: Any = _named("In msg size")  # before 2023-12; elements, whatever it says
    out_nelems_old: Any = _named("Out msg size")
    group_id_old: Any = _named("Process Group ID")  # 2024-03 only
    connection_id: Any = None  # Ascend: joins runtime calls with device tasks
    size: Any = None  # MTIA: bytes of a copy


class Event(msgspec.Struct, gc=False):
    """One entry of ``traceEvents``."""

    ph: Any = None
    cat: Any = None
    name: Any = None
    pid: Any = None
    tid: Any = None
    ts: Any = None
    dur: Any = None
    args: Args | list[Any] | str | int | float | bool | None = None


class ExactTimes(msgspec.Struct, gc=False):
    """Times of an event as text, for files in which a float cannot hold them."""

    ts: msgspec.Raw = cast("msgspec.Raw", None)
    dur: msgspec.Raw = cast("msgspec.Raw", None)


Item = Event | list[Any] | str | int | float | bool | None
"""An array entry; only events mean anything, the rest is counted."""

EVENTS = msgspec.json.Decoder(list[Item])
EVENT = msgspec.json.Decoder(Event)
RAW_ITEMS = msgspec.json.Decoder(list[msgspec.Raw])
TIMES = msgspec.json.Decoder(list[ExactTimes | list[Any] | str | int | float | bool | None])

NO_ARGS = Args()


def args_of(event: Event) -> Args:
    """The event's arguments; an empty set when it has none or they are no object."""
    return event.args if type(event.args) is Args else NO_ARGS
