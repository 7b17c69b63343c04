"""Analyses every public trace and prints one row each; the reviewed rows are the golden file.

    python tests/tools/corpus_table.py             # print the table and what differs from golden
    python tests/tools/corpus_table.py --write     # replace the golden file (after reading it!)
    python tests/tools/corpus_table.py --only fsdp # only inputs whose path contains the text

A row is a file, or a directory whose files are the ranks of one job. Seconds and peak memory are
printed, not compared: they are the machine's.
"""

from __future__ import annotations

import argparse
import csv
import os
import re
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(REPO)]

from analyzer.api import analyze  # noqa: E402
from analyzer.errors import MeshscopeError  # noqa: E402

GOLDEN = REPO / "tests" / "golden" / "corpus.tsv"
TRACES = Path(os.environ.get("MESHSCOPE_TRACES", REPO.parent / "shared" / "traces"))
FOLDERS = ("kineto", "torch_cpu", "npu", "et", "pipeline")
TRACE_FILE = re.compile(r"(?<!\.fr)\.(json|raw)(\.gz)?$")
JOBS = (
    "torch_cpu/**/rank0.json.gz",
    "kineto/torchtitan_fsdp4/profiling/traces/iteration_6/*rank000000*.json.gz",
    "kineto/modded_nanogpt/records/track_1_short/2025-12-11*/*/*rank0*.json.gz",
    "kineto/torchrec_golden/**/*_21147.*.json.gz",
    "kineto/torchrec_golden/**/*_58187.*.json.gz",
)
"""One file of each directory that holds the ranks of one job."""

COLUMNS = (
    "input", "outcome", "ranks", "kept", "dropped_steps", "step_ms", "compute_pct", "exposed_pct",
    "memcpy_pct", "idle_pct", "axes", "steps_from", "unclassified_pct", "dropped", "repaired",
)  # fmt: skip
MEASURED = ("seconds", "peak_mb")

Row = Mapping[str, str]


def inputs(root: Path = TRACES) -> Iterator[str]:
    """What is analysed, relative to ``root``: job directories as ``dir/*.ext``, and files."""
    jobs = sorted({path.parent for pattern in JOBS for path in root.glob(pattern)})
    for job in jobs:
        yield f"{job.relative_to(root)}/*.json.gz"
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*")):
            if path.is_file() and TRACE_FILE.search(path.name) and path.parent not in jobs:
                yield str(path.relative_to(root))


def row_of(name: str, root: Path = TRACES) -> dict[str, str]:
    """The golden columns of one input."""
    paths = sorted(map(str, (root / name).parent.glob("*.json.gz"))) if "*" in name else root / name
    row = dict.fromkeys(COLUMNS, "") | {"input": name}
    try:
        document = analyze(paths).document
    except MeshscopeError as error:
        return row | {"outcome": f"exit {int(error.exit_code)}: {error}".replace(f"{root}/", "")}
    return row | {"outcome": "ok"} | _facts(document) | _budget(document)


def _facts(document: Mapping[str, Any]) -> dict[str, str]:
    job, coverage = document["job"], document["coverage"]
    axes = [f"{axis}:{facts['evidence']}" for axis, facts in document["axes"].items()]
    share = coverage["unclassified_pct"]
    return {
        "ranks": f"{_ranges(job['ranks_seen'])} of {job['world_size'] or '?'}",
        "kept": str(len(job["steps_kept"])),
        "dropped_steps": str(len(job["steps_dropped"])),
        "axes": " ".join(axes),
        "steps_from": job["step_source"] + (" (host side)" if job["host_side"] else ""),
        "unclassified_pct": "" if share is None else f"{share:.2f}",
        "dropped": _counts(coverage["dropped_events"]),
        "repaired": _counts(coverage["repaired_events"]),
    }


def _budget(document: Mapping[str, Any]) -> dict[str, str]:
    step = document["step"]
    if not step:
        return {"step_ms": f"none: {document['null_reasons']['step']}"}
    if not step["time_ns"]:
        return {"step_ms": "0"}

    def share(ns: int) -> str:
        return f"{100 * ns / step['time_ns']:.2f}"

    exposed = [f"{axis}={share(ns)}" for axis, ns in step["exposed_comm_ns"].items()]
    return {
        "step_ms": f"{step['time_ns'] / 1e6:.3f}",
        "compute_pct": share(step["compute_ns"]),
        "exposed_pct": " ".join(exposed),
        "memcpy_pct": share(step["memcpy_ns"]),
        "idle_pct": share(sum(step["idle_ns"].values())),
    }


def _ranges(ranks: list[int]) -> str:
    """``0-3, 6``: consecutive ranks as ranges."""
    starts = [rank for rank in ranks if rank - 1 not in ranks]
    ends = [rank for rank in ranks if rank + 1 not in ranks]
    pairs = zip(starts, ends, strict=True)
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in pairs)


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {what}" for what, count in counts.items())


def read_golden(path: Path = GOLDEN) -> dict[str, dict[str, str]]:
    """The golden rows by input."""
    with path.open(encoding="utf-8", newline="") as file:
        return {row["input"]: row for row in csv.DictReader(file, delimiter="\t")}


def write_golden(rows: Iterable[Row], path: Path = GOLDEN) -> None:
    """Replace the golden file."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(
            file, COLUMNS, delimiter="\t", lineterminator="\n", extrasaction="ignore"
        )
        writer.writeheader()
        writer.writerows(rows)


def measured(name: str) -> dict[str, str]:
    """A row with the seconds it took and the process's peak memory meanwhile."""
    _reset_peak()
    began = time.perf_counter()
    row = row_of(name)
    seconds = time.perf_counter() - began
    return row | {"seconds": f"{seconds:.2f}", "peak_mb": f"{_peak_mb():.0f}"}


def _reset_peak() -> None:
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # Linux: resets VmHWM
    except OSError:
        return


def _peak_mb() -> float:
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii")
    except OSError:
        return float("nan")
    return int(re.findall(r"VmHWM:\s+(\d+) kB", status)[0]) / 1e3


def differences(rows: Iterable[Row], golden: Mapping[str, Row]) -> list[str]:
    """One line a column that is not what the golden file says."""
    found = []
    for row in rows:
        expected = golden.get(row["input"])
        if expected is None:
            found.append(f"{row['input']}: not in {GOLDEN.name}")
            continue
        found += [
            f"{row['input']}: {name} is {row[name]!r}, was {expected[name]!r}"
            for name in COLUMNS
            if row[name] != expected[name]
        ]
    return found


def main() -> int:
    """Print the table; 1 when it differs from the golden file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="replace the golden file")
    parser.add_argument("--only", default="", help="inputs whose path contains this")
    options = parser.parse_args()
    names = [name for name in inputs() if options.only in name]
    if not names:
        print(f"no traces in {TRACES} (set MESHSCOPE_TRACES)", file=sys.stderr)
        return 2
    print("\t".join((*COLUMNS, *MEASURED)))
    rows = []
    for name in names:
        rows.append(measured(name))
        print("\t".join(rows[-1].values()), flush=True)
    if options.write and not options.only:
        write_golden(rows)
        return 0
    found = differences(rows, read_golden() if GOLDEN.exists() else {})
    print(*found, sep="\n", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
