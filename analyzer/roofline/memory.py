"""Memory of weights, gradients and optimizer state, and of what FSDP gathers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class Accounting:
    """Bytes a parameter: working weights, gradients, optimizer state (with fp32 master weights)."""

    name: str
    weights: float
    grads: float
    optimizer: float

    @property
    def total(self) -> float:
        """All of them."""
        return self.weights + self.grads + self.optimizer


ACCOUNTINGS: Mapping[str, Accounting] = MappingProxyType(
    {
        row.name: row
        for row in (
            Accounting("zero", 2, 2, 12),  # ZeRO paper: fp32 master, m and v
            Accounting("bf16-states", 2, 2, 8),  # fp32 master, bf16 m and v
            Accounting("megatron", 2, 4, 12),  # bf16 weights, fp32 main gradients
            Accounting("megatron-fp16", 2, 2, 16),  # fp16 gradients, fp32 copies of both
            Accounting("megatron-fp32", 4, 4, 8),
            Accounting("scaling-book", 2, 0, 8),  # fp32 m and v, no master, gradients not counted
            Accounting("fsdp", 4, 4, 8),  # fp32 sharded weights and gradients, Adam
        )
    }
)
"""How projects count; a figure is only meaningful with the name."""


def state_bytes(parameters: float, accounting: Accounting, stage: int, shards: int) -> float:
    """Weights, gradients and optimizer state on a device.

    Formula:
        MEM-STATES
        ZeRO stage 0: (w+g+o)·P; 1: (w+g+o/X)·P; 2: (w+(g+o)/X)·P; 3: (w+g+o)/X·P

    Args:
        parameters: P that the data-parallel group shards between its members.
        accounting: w, g and o.
        stage: 0 replicated (DDP), 1, 2, or 3 (FSDP).
        shards: X.

    Returns:
        bytes.
    Source: ZeRO (arXiv 1910.02054), section 3.

    Raises:
        ValueError: a stage other than 0 to 3.
    """
    w, g, o = accounting.weights, accounting.grads, accounting.optimizer
    if stage not in range(4):
        raise ValueError(f"ZeRO stage must be 0 to 3, not {stage}")
    whole = (w + g + o, w + g, w, 0)[stage]
    return parameters * (whole + (accounting.total - whole) / shards)


def largest_model(memory_bytes: float, accounting: Accounting, stage: int, shards: int) -> float:
    """Most parameters whose states fit into a device.

    Formula:
        MEM-LARGEST
        P = memory / bytes a parameter of MEM-STATES

    Args:
        memory_bytes: of the device.
        accounting: w, g and o.
        stage: ZeRO stage.
        shards: X.

    Returns:
        parameters; nothing is left for activations.
    Source: ZeRO (arXiv 1910.02054), section 3.
    """
    return memory_bytes / state_bytes(1.0, accounting, stage, shards)


def fsdp_working_bytes(
    unit_parameters: float, weight_bytes: float, grad_bytes: float, prefetched: int = 1
) -> float:
    """What FSDP holds unsharded beside the states.

    Formula:
        MEM-FSDP-WORKING
        (1 + prefetch)·P_u·p_b + P_u·g_b

    Args:
        unit_parameters: P_u of the largest unit; often the embedding or the head.
        weight_bytes: p_b of gathered weights.
        grad_bytes: g_b of unsharded gradients.
        prefetched: units gathered ahead.

    Returns:
        bytes, the reduce-scatter's input buffer not counted.
    Source: PyTorch FSDP (arXiv 2304.11277).
    """
    return unit_parameters * ((1 + prefetched) * weight_bytes + grad_bytes)


def kv_cache_bytes(tokens: float, layers: int, kv_width: int, element_bytes: float = 2) -> float:
    """Key-value cache of generation.

    Formula:
        MEM-KV-CACHE
        2·s·L·K_h·H·e

    Args:
        tokens: s of all sequences.
        layers: L.
        kv_width: K_h·H.
        element_bytes: e.

    Returns:
        bytes.
    Source: scaling-book, inference chapter.
    """
    return 2 * tokens * layers * kv_width * element_bytes


def fragmentation(allocated_bytes: float, reserved_bytes: float) -> float:
    """Share of the allocator's reserved memory that nothing uses.

    Formula:
        MEM-FRAGMENTATION
        1 - allocated/reserved at the peak of reserved memory

    Args:
        allocated_bytes: live at that moment.
        reserved_bytes: peak.

    Returns:
        0 to 1.
    Source: PyTorch CUDA caching allocator.
    """
    return 1 - allocated_bytes / reserved_bytes


def allocation_bytes(requested_bytes: int) -> int:
    """What PyTorch's caching allocator takes for a request.

    Formula:
        MEM-ALLOCATION
        rounded up to 512 B

    Args:
        requested_bytes: of one tensor.

    Returns:
        bytes of the block.
    Source: PyTorch, c10/core/AllocatorConfig.h.
    Valid: default settings.
    """
    return -(-requested_bytes // 512) * 512


def segment_bytes(requested_bytes: int) -> int:
    """What PyTorch's caching allocator asks of the driver when no cached block fits.

    Formula:
        MEM-SEGMENT
        up to 1 MiB: 2 MiB; below 10 MiB: 20 MiB; else rounded up to 2 MiB

    Args:
        requested_bytes: of one tensor.

    Returns:
        bytes of the segment.
    Source: PyTorch, c10/core/AllocatorConfig.h.
    Valid: default settings, without expandable segments.
    """
    mib = 2**20
    size = allocation_bytes(requested_bytes)
    if size <= mib:
        return 2 * mib
    return 20 * mib if size < 10 * mib else -(-size // (2 * mib)) * 2 * mib
