"""Interruptions of a job on many devices, and the checkpoints that limit their cost."""

from __future__ import annotations

import math

DEVICE_HOURS_PER_FAILURE = 50_677.0
"""GPU-hours per unexpected interruption: 16,384 H100s, 54 days, 419 of them (arXiv 2407.21783)."""


def job_mtbf_s(devices: int, device_hours_per_failure: float = DEVICE_HOURS_PER_FAILURE) -> float:
    """Mean time between interruptions of a job.

    Formula:
        REL-MTBF
        MTBF = h / n

    Args:
        devices: n.
        device_hours_per_failure: h of one device.

    Returns:
        seconds.
    Source: Llama 3 (arXiv 2407.21783), section 3.3.4.
    Valid: any failure stops the job; independent failures.
    """
    return device_hours_per_failure * 3600 / devices


def interruptions_per_day(
    devices: int, device_hours_per_failure: float = DEVICE_HOURS_PER_FAILURE
) -> float:
    """Expected interruptions of a job in a day.

    Formula:
        REL-RATE
        24·n / h

    Args:
        devices: n.
        device_hours_per_failure: h of one device.

    Returns:
        per day.
    Source: Llama 3 (arXiv 2407.21783), section 3.3.4.
    """
    return 24 * devices / device_hours_per_failure


def checkpoint_interval_s(checkpoint_s: float, mtbf_s: float) -> float:
    """Checkpoint interval that loses least time.

    Formula:
        REL-YOUNG-DALY
        tau = sqrt(2·delta·MTBF)

    Args:
        checkpoint_s: delta, time training stands still for a checkpoint.
        mtbf_s: MTBF of the job.

    Returns:
        seconds between checkpoints.
    Source: Young 1974; Daly 2006, first order.
    Valid: delta well below the MTBF.
    """
    return math.sqrt(2 * checkpoint_s * mtbf_s)


def goodput(interval_s: float, checkpoint_s: float, mtbf_s: float, restart_s: float = 0.0) -> float:
    """Share of wall time that advances training.

    Formula:
        REL-GOODPUT
        1 - delta/tau - (tau/2 + R)/MTBF

    Args:
        interval_s: tau between checkpoints.
        checkpoint_s: delta.
        mtbf_s: MTBF of the job.
        restart_s: R, from the failure until training runs again.

    Returns:
        0 to 1.
    Source: Young 1974: half an interval is lost a failure, to first order.
    Valid: losses small beside 1.
    """
    return max(0.0, 1 - checkpoint_s / interval_s - (interval_s / 2 + restart_s) / mtbf_s)
