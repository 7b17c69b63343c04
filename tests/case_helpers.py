"""What the public cases share: the invariants of every result, and runs of the command line."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from builders import TraceBuilder

from analyzer import cli

TRACES = Path(
    os.environ.get("MESHSCOPE_TRACES", Path(__file__).resolve().parents[2] / "shared" / "traces")
)
DEEPSEEK = TRACES / "kineto" / "deepseek" / "train.json"


@dataclass(frozen=True, slots=True)
class Run:
    """One run of the command line."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> dict[str, Any]:
        """What ``--json -`` wrote."""
        document: dict[str, Any] = json.loads(self.out)
        return document


class Cli:
    """Runs the program in this process; a traceback or internal error never passes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch, self._capsys = monkeypatch, capsys

    def __call__(self, *args: object) -> Run:
        flags = ["--no-cache", "--no-config"]
        self._monkeypatch.setattr("sys.argv", ["analyze", *map(str, args), *flags])
        self._capsys.readouterr()
        with pytest.raises(SystemExit) as exit_:
            cli.main()
        captured = self._capsys.readouterr()
        run = Run(int(exit_.value.code or 0), captured.out, captured.err)
        assert "Traceback" not in run.err
        assert run.code in {0, 1, 2, 3}, run.err
        return run

    def fails(self, *args: object) -> str:
        """The one line of a run on unusable input."""
        run = self(*args)
        assert run.code == 2
        assert run.out == ""
        assert run.err.startswith("error: ")
        assert run.err.count("\n") == 1
        return run.err


def check(document: Mapping[str, Any]) -> None:
    """What every result must satisfy: figures that exist, no negative, a budget that closes."""
    json.dumps(document, allow_nan=False)
    step = document["step"]
    if step is None:
        assert document["exposed_comm_pct"] is None
        assert document["null_reasons"]["step"]
        return
    parts = [step["compute_ns"], step["bubble_ns"] or 0, step["memcpy_ns"]]
    parts += [*step["exposed_comm_ns"].values(), *step["idle_ns"].values()]
    assert min(parts) >= 0
    assert sum(parts) == step["time_ns"]


def share(document: Mapping[str, Any], ns: int) -> float:
    """Percent of the mean step."""
    return 100 * ns / int(document["step"]["time_ns"])


def idle(document: Mapping[str, Any]) -> int:
    """Idle time of the mean step."""
    return sum(document["step"]["idle_ns"].values())


def small(rank: int = 0, world_size: int = 1, **options: Any) -> TraceBuilder:
    """One step of 1000 us: compute 100-600, an all-reduce over all ranks 500-800."""
    trace = TraceBuilder(rank=rank, world_size=world_size, **options).step(0, 0, 1000)
    trace.kernel("nvjet_gemm", 100, 500, op="aten::mm")
    if world_size > 1:
        trace.collective("all_reduce", 500, 300, group="0", nelems=1 << 20)
    return trace


def steps(count: int) -> TraceBuilder:
    """``count`` steps of 1000 us: five kernels of 100 us each and an all-reduce over two ranks."""
    trace = TraceBuilder(world_size=2)
    for n in range(count):
        trace.step(n, 1000 * n, 1000)
        for k in range(5):
            trace.kernel("nvjet_gemm", 1000 * n + 100 + 150 * k, 100, op="aten::mm")
        trace.collective("all_reduce", 1000 * n + 850, 100, group="0", nelems=1 << 20)
    return trace
