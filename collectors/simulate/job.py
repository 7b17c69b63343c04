"""Simulating a job and writing it to a directory."""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from collectors.simulate.costs import Device, HostCosts
from collectors.simulate.engine import RankRecord, run
from collectors.simulate.kineto_writer import BASE_NS, START_NS, ClockError, write_trace
from collectors.simulate.programs import record_job
from collectors.simulate.spec import Group, SimSpec, process_groups
from collectors.simulate.truth import job_truth

TRUTH_FILE = "truth.json"
ORIGIN_NS = BASE_NS + START_NS
"""Unix time of a record's time 0."""


@dataclass(frozen=True, slots=True)
class SimulatedJob:
    """A simulated job: what happened on each rank (true time) and where the time went."""

    spec: SimSpec
    groups: tuple[Group, ...]
    device: Device
    records: tuple[RankRecord, ...]
    clock_offset_ns: tuple[int, ...]  # per rank, added to what is written
    clock_drift_ppm: tuple[float, ...]  # per rank, growing with the job's time
    truth: dict[str, Any]

    def trace(self, rank: int) -> bytes:
        """The rank's trace as Kineto JSON."""
        clock = ClockError(self.clock_offset_ns[rank], self.clock_drift_ppm[rank])
        return write_trace(self.records[rank], self.groups, self.spec, self.device, clock)


def simulate(
    spec: SimSpec, device: Device | None = None, host: HostCosts | None = None
) -> SimulatedJob:
    """Simulate a job. Equal arguments give equal jobs.

    Args:
        spec: What to simulate.
        device: Costs of device work; an H100 unless given.
        host: Costs of host work.
    """
    device = device or Device()
    groups = process_groups(spec)
    tapes = record_job(spec, groups, device, host or HostCosts())
    records = tuple(run(tapes, jitter=spec.jitter, seed=spec.seed))
    random = Random(f"{spec.seed}/clock")  # noqa: S311 - noise, not secrets
    errors = [round(spec.clock_skew_ns * (2 * random.random() - 1)) for _ in records]
    offsets = (0, *errors[1:])  # rank 0 is the reference
    rates = Random(f"{spec.seed}/drift")  # noqa: S311 - noise, not secrets
    drawn = [spec.clock_drift_ppm * (2 * rates.random() - 1) for _ in records]
    drifts = (0.0, *drawn[1:])
    truth = {
        "simulated": True,
        "strategy": spec.strategy,
        "mesh": dict(spec.mesh),
        "world_size": spec.world_size,
        "defects": [str(defect) for defect in spec.defects],
        "clock_offset_ns": list(offsets),
        **({"clock_drift_ppm": list(drifts)} if spec.clock_drift_ppm else {}),
        "groups": [{"axis": g.axis, "name": g.name, "ranks": list(g.ranks)} for g in groups],
        **job_truth(records, ORIGIN_NS),
    }
    return SimulatedJob(spec, groups, device, records, offsets, drifts, truth)


def write(job: SimulatedJob, directory: Path, *, compress: bool = True) -> list[Path]:
    """Write ``rank<N>.json.gz`` (or ``.json``) per rank and ``truth.json``; returns the paths.

    Compressed files carry no time or name, so equal jobs give equal files.
    """
    directory.mkdir(parents=True, exist_ok=True)
    paths = []
    for rank in range(job.spec.world_size):
        path = directory / (f"rank{rank}.json.gz" if compress else f"rank{rank}.json")
        data = job.trace(rank)
        path.write_bytes(gzip.compress(data, mtime=0) if compress else data)
        paths.append(path)
    truth_path = directory / TRUTH_FILE
    truth_path.write_text(json.dumps(job.truth, indent=1) + "\n")
    return [*paths, truth_path]
