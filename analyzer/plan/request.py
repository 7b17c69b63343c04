"""What the user states: model, devices, batch, strategy, and a measured result to learn from."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from analyzer.errors import InputError, UsageError
from analyzer.roofline.hf_config import from_hf_config
from analyzer.roofline.memory import ACCOUNTINGS, Accounting
from analyzer.roofline.model_dims import ModelDims, dims_of, find_model
from analyzer.strategy import parse_expect

DATA_WORDS = ("ddp", "zero1", "fsdp", "hsdp")
_ALIASES = {"zero3": "fsdp", "zero2": "zero1"}
_SUFFIXES = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "b": 1e9}
_MAX_DEVICES = 1 << 20


@dataclass(frozen=True, slots=True)
class Wanted:
    """Strategies to consider: words of data parallelism, and axis -> degree (None: any)."""

    data: tuple[str, ...] = DATA_WORDS
    axes: Mapping[str, int | None] | None = None  # None: every axis

    def allows(self, axis: str, degree: int) -> bool:
        """Whether a mesh may have this degree on an axis."""
        if self.axes is None:
            return True
        if axis not in self.axes:
            return degree == 1
        fixed = self.axes[axis]
        return degree > 1 if fixed is None else degree == fixed


@dataclass(frozen=True, slots=True)
class Measured:
    """Efficiencies of a measured result, and which of them were used."""

    link_efficiency: Mapping[str, float]
    compute_efficiency: float | None
    idle_share: float | None  # time with neither compute nor communication, over compute time
    notes: tuple[str, ...]  # one line for each figure: what it replaces, or why it does not


@dataclass(frozen=True, slots=True)
class Request:
    """A plan to make; batches in tokens of one optimizer step."""

    dims: ModelDims
    batch_tokens: float
    sequence: int
    wanted: Wanted
    accounting: Accounting
    grad_bytes: float = 4
    reserve: float = 0.1
    tensor_across_nodes: bool = False


def read_model(text: str) -> ModelDims:
    """A model by catalogue name, by the path of a ``config.json``, or by its dimensions.

    Dimensions are written ``layers=40,hidden=5120,ffn=13824,heads=40,vocab=32000``; ``kv_heads``
    and ``head_dim`` follow from ``heads`` when left out.

    Raises:
        UsageError: an unknown model, an unreadable file, or missing dimensions.
    """
    if "=" in text and not Path(text).exists():
        return _dims_from_words(text)
    if text.endswith(".json") or Path(text).is_file():
        return _checked(from_hf_config(_read_json(Path(text), "--model")), text)
    return find_model(text)


def _checked(dims: ModelDims, path: str) -> ModelDims:
    """Dimensions of a file that can be computed with."""
    sizes = {"layers": dims.layers, "hidden": dims.hidden, "heads": dims.heads,
             "kv_heads": dims.kv_heads, "head_dim": dims.head_dim, "vocab": dims.vocab}  # fmt: skip
    for name, value in sizes.items():
        if not isinstance(value, int) or not 0 < value < 1 << 32:
            raise UsageError(f"--model {path}: {name} is {value!r}")
    return dims


def _dims_from_words(text: str) -> ModelDims:
    row: dict[str, Any] = {"name": "model", "source": "stated"}
    allowed = {"layers", "hidden", "ffn", "heads", "kv_heads", "head_dim", "vocab"}
    for part in text.split(","):
        key, _, value = part.partition("=")
        if key.strip() not in allowed or not value.strip().isdecimal():
            raise UsageError(f"--model: {part!r} is no dimension", hint=", ".join(sorted(allowed)))
        row[key.strip()] = int(value)
    heads = row.get("heads", 0)
    row.setdefault("kv_heads", heads)
    if heads and "hidden" in row:
        row.setdefault("head_dim", row["hidden"] // heads)
    if row.get("ffn", 0) < 1:
        raise UsageError("--model: no usable ffn")
    return dims_of(row)


def read_tokens(text: str) -> float:
    """Tokens of a batch: ``4194304``, ``4M`` (4e6), ``1.5m``, ``64k``, ``3e6``.

    Raises:
        UsageError: not a positive number.
    """
    found = re.fullmatch(r"\s*([0-9.]+(?:e[0-9]+)?)\s*([kmgb]?)\s*", text.lower())
    try:
        value = float(found[1]) * _SUFFIXES[found[2]] if found else 0.0
    except ValueError:
        value = 0.0
    if not 0 < value < 1e15:
        raise UsageError(f"--batch-tokens {text!r} is no number of tokens", hint="like 4M or 3e6")
    return value


def read_devices(text: str, pods: int) -> tuple[int, tuple[int, ...]]:
    """All devices, and the torus shape of a slice where the user gives one (``16x16x16``).

    Raises:
        UsageError: not a positive count, or a count that pods do not divide.
    """
    sizes = text.lower().split("x")
    if not all(size.isdecimal() and len(size) < 9 and int(size) > 0 for size in sizes):
        raise UsageError(f"--devices {text!r} is not a count", hint="like 512 or 16x16x16")
    count = 1
    for size in sizes:
        count *= int(size)
    shape = tuple(int(size) for size in sizes) if len(sizes) > 1 else ()
    total = count * pods if shape else count
    if total > _MAX_DEVICES:
        raise UsageError(f"--devices: more than {_MAX_DEVICES} devices")
    if total % pods:
        raise UsageError(f"--devices {total} is no multiple of --pods {pods}")
    return total, shape


def read_share(text: str | None, option: str) -> float | None:
    """A share above 0 up to 1, written ``40%`` or ``0.4``.

    Raises:
        UsageError: anything else.
    """
    if text is None:
        return None
    try:
        value = float(text.strip().removesuffix("%")) / (100 if text.strip().endswith("%") else 1)
    except ValueError:
        value = 0.0
    if not 0 < value <= 1:
        raise UsageError(f"{option} {text!r} is not a share", hint="like 40% or 0.4")
    return value


def read_strategy(text: str | None) -> Wanted:
    """Strategies to consider, from words as ``--expect`` takes them (``fsdp+tp8``).

    Raises:
        UsageError: an unknown word.
    """
    if text is None:
        return Wanted()
    parsed = parse_expect(text)
    data = tuple(dict.fromkeys(
        _ALIASES.get(word, word) for word in parsed.words if _ALIASES.get(word, word) in DATA_WORDS
    ))  # fmt: skip
    axes = {
        axis: made.degree for axis, made in parsed.axes.items() if axis in {"tp", "pp", "cp", "ep"}
    }
    return Wanted(data or DATA_WORDS, axes)


def read_accounting(text: str) -> Accounting:
    """An accounting of bytes a parameter by name.

    Raises:
        UsageError: an unknown one.
    """
    found = ACCOUNTINGS.get(text)
    if found is None:
        raise UsageError(f"--accounting {text!r} is not known", hint=", ".join(ACCOUNTINGS))
    return found


def read_result(path: Path) -> Measured:
    """Efficiencies measured in a result written with ``analyze --json``.

    The link efficiency of every axis that has one is used. Compute efficiency needs ``mfu_pct``:
    divided by compute's share of the step it is the share of the peak reached while computing.

    Raises:
        InputError: not a result of meshscope.
    """
    document = _read_json(path, "--from")
    if document.get("schema") != "meshscope.analysis/1":
        raise InputError(f"{path}: not a meshscope result", hint="written with analyze --json")
    links: dict[str, float] = {}
    notes: list[str] = []
    for axis, row in document["axes"].items():
        value = row.get("link_efficiency")
        if value and 0 < value <= 1:
            links[axis] = float(value)
            notes.append(f"{axis}: {value:.0%} of the link rate replaces the benchmark curve")
        else:
            why = "is above the datasheet rate" if value else "was not measured"
            notes.append(f"{axis}: link efficiency {why}, the benchmark curve stays")
    step, mfu = document.get("step"), document.get("mfu_pct")
    if not step or not step["compute_ns"]:
        notes.append("no step was measured: compute efficiency and idle time keep their defaults")
        return Measured(links, None, None, tuple(notes))
    compute, whole = step["compute_ns"], step["time_ns"]
    idle = (sum(step["idle_ns"].values()) + step["memcpy_ns"]) / compute
    notes.append(f"idle and copies: {idle:.1%} of compute time are added to every step")
    efficiency = mfu / 100 / (compute / whole) if mfu else None
    if efficiency is None or efficiency > 1:
        notes.append("compute efficiency: no model FLOPs utilisation in the result, default stays")
        return Measured(links, None, idle, tuple(notes))
    notes.append(
        f"compute: {mfu:.1f} % MFU over {compute / whole:.0%} compute time gives "
        f"{efficiency:.0%} of peak"
    )
    return Measured(links, efficiency, idle, tuple(notes))


def _read_json(path: Path, option: str) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{option} {path}: {error.strerror or 'cannot be read'}") from None
    except (ValueError, RecursionError):
        raise InputError(f"{option} {path}: not JSON") from None
    if not isinstance(document, dict):
        raise InputError(f"{option} {path}: not a JSON object")
    return document
