"""Damaged files, cut anywhere, with wrong bytes or values: always a result or one line.

Damage is random from fixed seeds: a failing case can be run again by its number.
"""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from builders import Group, TraceBuilder
from case_helpers import TRACES, Cli, check

REAL = (
    "kineto/tracelens/tests/traces/torch_compile_triton/trace.json.gz",
    "kineto/torchtitan_fsdp4/profiling/traces/iteration_6/11f6ff08__rank000000_trace.json.gz",
    "torch_cpu/fsdp2/rank0.json.gz",
)
WEIRD: tuple[Any, ...] = (
    None, True, -1, 0, 1.5, -1e-9, 1e300, 2**31, 2**63 - 1, -(2**63), 2**70, "", "x", "9" * 400,
    "NaN", "0x10", [], {}, [[1]], {"a": 1}, "[0, 1", "[0, 0]", "[-1, 5]", '["a"]', '[[1], ["x"]]',
)  # fmt: skip


@pytest.fixture(scope="module")
def sound() -> bytes:
    """A small trace with something of everything."""
    groups = [Group("1", "mesh_dp_shard", (0, 2)), Group("2", "mesh_tp", (0, 1))]
    trace = TraceBuilder(world_size=4, groups=groups).thread_name("main")
    for n in range(4):
        at = 1000 * n
        trace.step(n, at, 1000)
        trace.range("FSDP::all_gather", at + 20, 30)
        trace.collective("all_gather", at + 50, 100, group="1", nelems=4096)
        trace.kernel("nvjet_gemm", at + 100, 300, op="aten::mm")
        trace.collective("all_reduce", at + 400, 100, group="2", nelems=4096)
        trace.memcpy(at + 520, 20)
        trace.sync("Stream Sync", at + 530, 100)
        trace.kernel("adam_kernel", at + 700, 50, op="aten::_fused_adam_")
        trace.device_range("ProfilerStep", at + 50, 800).memory(at + 60, 1 << 20)
    return trace.json()


def judge(run_cli: Cli, path: Path) -> None:
    """One line and code 2, or a result that keeps its promises."""
    run = run_cli(path, "--max-exposed-comm", "99%", "--json", "-")
    if run.code == 2:
        assert run.err.startswith("error: ")
        assert run.err.count("\n") == 1
        return
    check(run.document)
    cut = bool(run.document["coverage"]["truncated_inputs"])
    if cut:
        assert run.code == 3
        assert run.document["gates"][0]["passed"] is None


def real_traces() -> Iterator[Any]:
    for name in REAL:
        missing = pytest.mark.skipif(not (TRACES / name).exists(), reason="needs MESHSCOPE_TRACES")
        yield pytest.param(name, id=name, marks=[pytest.mark.corpus, pytest.mark.slow, missing])


def flipped(data: bytes, dice: random.Random) -> bytes:
    damaged = bytearray(data)
    for _ in range(dice.choice((1, 1, 3, 20, 200))):
        damaged[dice.randrange(len(damaged))] = dice.randrange(256)
    return bytes(damaged)


def weird(data: bytes, dice: random.Random) -> bytes:
    """Some values, or one key's values throughout, replaced by ones of another kind."""
    document = json.loads(data)
    events = document["traceEvents"]
    info = document.get("distributedInfo") or {}
    places = [*events, *(e["args"] for e in events if e.get("args")), info]
    places += [g for g in info.get("pg_config", ()) if isinstance(g, dict)]
    if dice.random() < 0.5:
        for _ in range(dice.choice((3, len(places) // 4))):
            place = dice.choice([p for p in places if p])
            place[dice.choice(sorted(place))] = dice.choice(WEIRD)
    else:
        keys = sorted({key for place in places for key in place if key != "args"})
        key, values = dice.choice(keys), [dice.choice(WEIRD), dice.choice(WEIRD)]
        for place in places:
            if key in place:
                place[key] = dice.choice(values)
    return json.dumps(document).encode()


def damage(data: bytes, seed: int) -> tuple[str, bytes]:
    """File name and bytes of the ``seed``-th damaged trace."""
    dice = random.Random(seed)
    kind = ("cut", "cut gzip", "flip", "flip gzip", "weird", "weird")[seed % 6]
    if kind == "weird":
        return "rank0.json", weird(data, dice)
    packed = gzip.compress(data, mtime=0) if "gzip" in kind else data
    name = "rank0.json.gz" if "gzip" in kind else "rank0.json"
    if "cut" in kind:
        return name, packed[: dice.randrange(len(packed))]
    return name, flipped(packed, dice)


@pytest.mark.parametrize("seed", range(72))
def test_damaged_traces(tmp_path: Path, run_cli: Cli, sound: bytes, seed: int) -> None:
    name, data = damage(sound, seed)
    (tmp_path / name).write_bytes(data)
    judge(run_cli, tmp_path / name)


@pytest.mark.parametrize("name", list(real_traces()))
@pytest.mark.parametrize("seed", range(1000, 1036))
def test_damaged_real_traces(tmp_path: Path, run_cli: Cli, name: str, seed: int) -> None:
    file, data = damage(gzip.decompress((TRACES / name).read_bytes()), seed)
    (tmp_path / file).write_bytes(data)
    judge(run_cli, tmp_path / file)


@pytest.mark.parametrize(
    "data",
    [
        b"", b" \n", b"{", b"[", b"{}", b"[]", b"null", b"0", b'"text"', b"[1, 2]", b"[{}]",
        b"[[]]", b'{"traceEvents": []}', b'{"traceEvents": null}', b'{"traceEvents": {}}',
        b'{"traceEvents": [null, 1, "x", [], {}]}', b"[" * 100_000, b'{"a":' * 100_000,
        b'{"nodes": [{"ctrl_deps": 1}]}', b'{"traceEvents": [{"ph": "X"}]}', b"\x00" * 100,
        b'{"traceEvents": [{"ph": "X", "ts": 1, "dur": 1}]}', b"\xff\xfe{\x00}\x00",
        b"\x1f\x8b", b"PK\x03\x04", b"\x80\x04",
    ],
    ids=lambda data: repr(data[:24]),
)  # fmt: skip
@pytest.mark.parametrize("name", ["rank0.json", "rank0.json.gz"])
def test_what_is_no_trace(tmp_path: Path, run_cli: Cli, name: str, data: bytes) -> None:
    packed = name.endswith(".gz") and data
    (tmp_path / name).write_bytes(gzip.compress(data, mtime=0) if packed else data)
    run = run_cli(tmp_path / name, "--json", "-")
    if run.code == 2:
        assert run.err.count("\n") == 1
        assert name in run.err
    else:
        check(run.document)
        assert run.document["step"] is None


@pytest.mark.parametrize("value", WEIRD, ids=repr)
@pytest.mark.parametrize("key", ["rank", "world_size", "pg_config", "backend"])
def test_distributed_info_of_any_kind(
    tmp_path: Path, run_cli: Cli, sound: bytes, key: str, value: object
) -> None:
    document = json.loads(sound)
    document["distributedInfo"][key] = value
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    run = run_cli(path, "--json", "-")
    assert run.code == 0
    check(run.document)
    assert run.document["step"]["compute_ns"] == 350_000


def test_names_cannot_write_to_the_terminal(tmp_path: Path, run_cli: Cli) -> None:
    trace = TraceBuilder().step(0, 0, 1000)
    trace.kernel("\x1b[2J\x1b]0;owned\x07gemm", 100, 300)
    trace.range("[bold red]markup[/bold red]</script><script>alert(1)</script>", 50, 600)
    path = trace.write(tmp_path / "rank0.json")
    page = tmp_path / "report.html"
    run = run_cli(path, "--html", page)
    assert "\x1b" not in run.out
    assert "<script>alert(1)" not in page.read_text(encoding="utf-8")
    missing = run_cli.fails(tmp_path / "no\x1b[31msuch\nfile.json")
    assert "\x1b" not in missing
