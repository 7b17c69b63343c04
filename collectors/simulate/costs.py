"""How long things take: kernels by FLOPs or bytes, collectives by latency and bandwidth.

Plausible, not exact: a simulated job needs proportions like a real one, and its truth comes from
the simulated intervals, not from these formulas.
"""

from __future__ import annotations

from dataclasses import dataclass

DTYPE_BYTES = {"BFloat16": 2, "Float": 4, "Long": 8}

_STEPS = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1, "send": 0}


@dataclass(frozen=True, slots=True)
class Device:
    """An accelerator and its links. Rates are what is achieved, in bytes or FLOPs a second."""

    name: str = "NVIDIA H100 80GB HBM3"
    memory_bytes: int = 85_028_372_480
    matmul_flops: float = 640e12
    attention_flops: float = 400e12
    memory_rate: float = 2.7e12
    node_link_rate: float = 360e9  # NVLink, per rank
    nic_rate: float = 36e9  # per rank
    base_latency_ns: int = 24_000  # of a collective
    node_hop_ns: int = 1_000
    nic_hop_ns: int = 8_000
    shortest_kernel_ns: int = 1_800


@dataclass(frozen=True, slots=True)
class HostCosts:
    """Host time around device work, in ns, before any host-bound factor."""

    before_launch_ns: int = 3_200  # dispatcher, allocation, autograd bookkeeping
    launch_ns: int = 2_600
    after_launch_ns: int = 900
    event_ns: int = 700  # cudaEventRecord, cudaStreamWaitEvent
    collective_ns: int = 7_000  # c10d work around one launch
    sync_call_ns: int = 4_000
    sync_return_ns: int = 6_000  # from the device being done to the call's return
    start_latency_ns: int = 2_000  # from the end of the launch call to the earliest kernel start
    data_ns: int = 30_000  # a dataloader that keeps up
    python_ns: int = 2_000  # entering a range


def matmul_ns(flops: float, device: Device) -> int:
    """A dense matmul of that many FLOPs."""
    return max(device.shortest_kernel_ns, round(1e9 * flops / device.matmul_flops))


def attention_ns(flops: float, device: Device) -> int:
    """A flash-attention kernel of that many FLOPs."""
    return max(device.shortest_kernel_ns, round(1e9 * flops / device.attention_flops))


def memory_ns(nbytes: float, device: Device) -> int:
    """A kernel bound by reading and writing that many bytes."""
    return max(device.shortest_kernel_ns, round(1e9 * nbytes / device.memory_rate))


def transfer_ns(
    op: str, message_bytes: int, ranks: tuple[int, ...], ranks_per_node: int, device: Device
) -> int:
    """A collective by the ring model: base + hops x hop latency + f S / W.

    ``message_bytes`` is S of nccl-tests (all-gather output, reduce-scatter input), f the bus
    bandwidth factor, W the link rate of the slowest level the ring crosses: inside a node the
    NVLink rate, across nodes the NICs of the members on one node together.
    """
    n = len(ranks)
    if n == 1:
        return device.base_latency_ns
    nodes = len({rank // ranks_per_node for rank in ranks})
    rounds = _STEPS[op]
    hops = rounds * (n - 1) if rounds else 1
    factor = rounds * (n - 1) / n if rounds else 1
    slow_hops = min(hops, rounds * (nodes - 1) if rounds else nodes - 1)
    latency = slow_hops * device.nic_hop_ns + (hops - slow_hops) * device.node_hop_ns
    rate = device.node_link_rate if nodes == 1 else device.nic_rate * max(1, n // nodes)
    return device.base_latency_ns + latency + round(1e9 * factor * message_bytes / rate)
