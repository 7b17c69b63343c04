"""Makes a large Kineto trace out of a small one by repeating it in time.

    python benchmarks/generate.py OUT.json.gz --megabytes 200 [--flavour stacks|plain]
                                              [--source TRACE] [--steps N]

Every repetition shifts timestamps by the source's span and all identifiers (correlation, External
id, flow ids, sequence numbers) by their range, so that launches and flows stay distinct. There are
as many ProfilerSteps as in the source (or ``--steps``), each over an equal number of repetitions:
large traces have long steps rather than many. Names, durations, shapes and arguments are the
source's, and the text has Kineto's layout, so size, compression ratio (about 14:1) and the share of
distinct strings are those of a real trace.

The default source is rank 0 of ``sample_traces/fsdp_tp_healthy`` (simulated: FSDP x TP on H100 with
NCCL arguments). Flavour ``stacks`` adds three Python frames around every operator and its shapes
where the source has none, as ``with_stack=True, record_shapes=True`` would; ``plain`` removes both.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

DEFAULT_SOURCE = Path(__file__).parent.parent / "sample_traces" / "fsdp_tp_healthy"
FLAVOURS = ("stacks", "plain")
SHAPE_KEYS = ("Input Dims", "Input type", "Input Strides", "Concrete Inputs")
FRAMES = (
    "torch/nn/modules/module.py(1775): _call_impl",
    "torch/nn/modules/module.py(1786): _call_impl",
    "torch/nn/modules/linear.py(134): forward",
)
ID_KEYS = (
    "correlation", "External id", "Ev Idx", "Python id", "Python parent id", "Sequence number",
    "Record function id", "Seq", "id",
)  # fmt: skip
_EXACT = "\0exact:"  # marks decimals, which json would read as floats and write rounded
_SHIFTED = re.compile(rb'("(ts|' + "|".join(ID_KEYS).encode() + rb')": )(\d+)')


@dataclass(frozen=True)
class Generated:
    """What was written."""

    path: Path
    source: Path
    events: int
    json_bytes: int


def generate(
    target: Path,
    megabytes: float,
    *,
    flavour: str = "stacks",
    source: Path | None = None,
    steps: int | None = None,
) -> Generated:
    """Write about ``megabytes`` (1e6 bytes of JSON) to ``target``, gzipped when it ends in .gz."""
    source = _a_file(source or DEFAULT_SOURCE)
    document = _load(source)
    events = document.pop("traceEvents")
    repeated = [e for e in events if _is_repeated(e)]
    once = [e for e in events if not _is_repeated(e) and not _is_step(e)]
    repeated = list(_with_stacks(repeated) if flavour == "stacks" else _without(repeated))
    block = b",\n".join(_text(event) for event in repeated)
    template, values = _template(block)
    span = {"ts": _span(repeated), "id": _id_range(values)}
    repeats = max(1, round(megabytes * 1e6 / len(block)))
    once += _steps(events, span["ts"], repeats, steps)
    written = 0
    with _open(target) as out:
        head = json.dumps(document, indent=2)[:-2] + ',\n  "traceEvents": [\n'
        pieces = [_numbers(head.encode()), *(_text(event) + b",\n" for event in once)]
        for piece in pieces:
            written += out.write(piece)
        for repeat in range(repeats):
            text = template % tuple(value + repeat * span[kind] for kind, value in values)
            written += out.write(text + (b",\n" if repeat + 1 < repeats else b"\n  ]\n}\n"))
    return Generated(target, source, len(repeated) * repeats + len(once), written)


def _a_file(source: Path) -> Path:
    if source.is_file():
        return source
    return min(source.glob("*rank*.json*"))


def _load(path: Path) -> dict[str, Any]:
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as file:
        document = json.load(file, parse_float=lambda text: _EXACT + text)
    return dict(document)


def _open(target: Path) -> Any:
    return gzip.open(target, "wb", compresslevel=6) if target.suffix == ".gz" else target.open("wb")


def _is_repeated(event: dict[str, Any]) -> bool:
    kept = event.get("ph") in {"X", "s", "f", "i"} and event.get("cat") != "Trace"
    return kept and "ts" in event and not _is_step(event)


def _is_step(event: dict[str, Any]) -> bool:
    return str(event.get("name")).startswith("ProfilerStep#") and event.get("ph") == "X"


def _with_stacks(events: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The events, with Python frames and shapes unless the source has them."""
    has_stacks = any(e.get("cat") == "python_function" for e in events)
    frame = 0
    for event in events:
        if event.get("cat") == "cpu_op" and not has_stacks:
            for depth, name in enumerate(FRAMES):
                frame += 1
                args = {
                    "Python parent id": frame - 1 if depth else 0, "Python id": frame,
                    "Python module id": depth, "Ev Idx": frame,
                }  # fmt: skip
                yield {**event, "cat": "python_function", "name": name, "args": args}
        if event.get("cat") == "cpu_op" and "Input Dims" not in event.get("args", {}):
            shapes = {"Input Dims": [[4096, 4096], [4096]], "Input type": ["c10::BFloat16"] * 2}
            event = {**event, "args": {**event.get("args", {}), **shapes}}
        yield event


def _without(events: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The events without Python frames and shapes."""
    for event in events:
        if event.get("cat") == "python_function":
            continue
        args = {k: v for k, v in event.get("args", {}).items() if k not in SHAPE_KEYS}
        yield {**event, "args": args} if "args" in event else event


def _text(event: dict[str, Any]) -> bytes:
    """One event in the layout of Kineto's own writer."""
    head = [k for k in event if k not in {"args", "ts", "dur"}]
    lines = [", ".join(f'"{k}": {json.dumps(event[k])}' for k in head)]
    times = [f'"{k}": {json.dumps(event[k])}' for k in ("ts", "dur") if k in event]
    lines += [", ".join(times)] if times else []
    if "args" in event:
        args = ", ".join(f'"{k}": {json.dumps(v)}' for k, v in event["args"].items())
        lines += ['"args": {\n      ' + args + "\n    }"]
    return _numbers(("  {\n    " + ",\n    ".join(lines) + "\n  }").encode())


def _numbers(text: bytes) -> bytes:
    marker = json.dumps(_EXACT)[1:-1].encode()
    return re.sub(rb'"' + re.escape(marker) + rb'([^"]*)"', rb"\1", text)


def _template(block: bytes) -> tuple[bytes, list[tuple[str, int]]]:
    """The block with ``%d`` for every number to shift, and those numbers with their kind."""
    values: list[tuple[str, int]] = []
    parts, at = [], 0
    for match in _SHIFTED.finditer(block):
        values.append(("ts" if match[2] == b"ts" else "id", int(match[3])))
        parts += [block[at : match.start(3)].replace(b"%", b"%%"), b"%d"]
        at = match.end()
    return b"".join([*parts, block[at:].replace(b"%", b"%%")]), values


def _span(events: list[dict[str, Any]]) -> int:
    """Microseconds from the first start to the last end, and a little."""
    starts = [_us(event["ts"]) for event in events]
    ends = [_us(event["ts"]) + _us(event.get("dur", 0)) for event in events]
    return int(max(ends) - min(starts)) + 1000


def _us(value: Any) -> float:
    return float(str(value).removeprefix(_EXACT))


def _id_range(values: list[tuple[str, int]]) -> int:
    """Above every identifier that counts up; hashes and addresses are larger and shift too."""
    return max((value for kind, value in values if kind == "id" and value < 10**9), default=0) + 1


def _steps(
    events: list[dict[str, Any]], span: int, repeats: int, count: int | None
) -> list[dict[str, Any]]:
    """``count`` host-side steps (as many as the source has) stretched over all repetitions."""
    steps = [e for e in events if _is_step(e) and e["cat"] != "gpu_user_annotation"]
    if not steps:
        return []
    steps.sort(key=lambda step: _us(step["ts"]))
    count = min(count or len(steps), repeats)
    number, first = int(steps[0]["name"].partition("#")[2]), int(_us(steps[0]["ts"]))
    bounds = [first + round(i * repeats / count) * span for i in range(count + 1)]
    return [
        {**steps[0], "name": f"ProfilerStep#{number + i}", "ts": start, "dur": end - start - 1}
        for i, (start, end) in enumerate(pairwise(bounds))
    ]


def _label(source: Path) -> str:
    """The source as named in results: relative to the repository, or its file name."""
    root = DEFAULT_SOURCE.parent.parent.resolve()
    inside = source.resolve().is_relative_to(root)
    return str(source.resolve().relative_to(root)) if inside else source.name


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("target", type=Path)
    parser.add_argument("--megabytes", type=float, default=200)
    parser.add_argument("--flavour", choices=FLAVOURS, default="stacks")
    parser.add_argument("--source", type=Path, help="a trace, or a directory of one job's traces")
    parser.add_argument("--steps", type=int, help="ProfilerSteps; by default as many as the source")
    given = parser.parse_args()
    made = generate(
        given.target, given.megabytes,
        flavour=given.flavour, source=given.source, steps=given.steps,
    )  # fmt: skip
    said = {"events": made.events, "json_bytes": made.json_bytes, "source": _label(made.source)}
    print(json.dumps(said))


if __name__ == "__main__":
    main()
