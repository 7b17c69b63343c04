"""The formulas by id, read from their docstrings, and the page that lists them.

A function is a formula when its docstring has a ``Formula:`` section: the id on the first line, the
formula on the following ones. ``Source:`` and ``Valid:`` say where it comes from and when it holds.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Any

CHAPTERS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "Parameters and FLOPs": ("model_dims", "flops", "compute", "hardware"),
        "Collectives": (
            "collectives",
            "nccl",
            "hierarchy",
            "torus",
            "achievable",
            "expected",
        ),
        "Strategies": (
            "exposure",
            "data_parallel",
            "tensor",
            "combined",
            "context",
            "expert",
            "pricing",
        ),
        "Pipeline schedules": ("pipeline",),
        "Mixture of experts": ("moe",),
        "Memory": ("memory", "activations"),
        "Reliability": ("reliability",),
    }
)
"""Chapter -> modules of this package whose public functions are formulas."""

_SECTION = re.compile(r"^(Formula|Args|Returns|Raises|Source|Valid|Example):\s*(.*)$")

INTRODUCTION = """\
# Theory

<!-- Written by `python -m analyzer.roofline.registry`; a test keeps it in step with the code. -->

Every formula behind a roofline, an expected time or a bound, as the code states it. Findings cite
the id in front. Bytes per second are one direction: a GPU's egress (450e9 for an H100's NVLink,
which data sheets print as 900), except on a torus, where the rate of an axis counts both of its
links. 1 GB is 1e9 bytes, peaks are dense. Symbols: n ranks of a group, S message bytes as
nccl-tests counts them, W link bytes/s, a latency of a hop, C FLOP/s, D model width, F feed-forward
width, B tokens of a global batch, X data-parallel degree, Y tensor-parallel degree, M hardware axes
used.
"""


@dataclass(frozen=True, slots=True)
class Formula:
    """One formula as its docstring states it."""

    id: str
    text: str
    function: str  # module.function inside this package
    summary: str
    symbols: Mapping[str, str]  # parameter -> meaning and unit
    returns: str
    source: str
    valid: str


@cache
def formulas() -> Mapping[str, Formula]:
    """Formula id -> formula, in the order of :data:`CHAPTERS`.

    Raises:
        ValueError: an id occurs twice.
    """
    found: dict[str, Formula] = {}
    for modules in CHAPTERS.values():
        for module in modules:
            for name, function in public_functions(module):
                made = parse(f"{module}.{name}", inspect.getdoc(function) or "")
                if made is None:
                    continue
                if made.id in found:
                    raise ValueError(
                        f"{made.id}: both {found[made.id].function} and {module}.{name}"
                    )
                found[made.id] = made
    return MappingProxyType(found)


def public_functions(module: str) -> list[tuple[str, Callable[..., Any]]]:
    """The public functions a module of this package defines, in source order."""
    loaded = importlib.import_module(f"{__package__}.{module}")
    own = [
        (name, value)
        for name, value in vars(loaded).items()
        if inspect.isfunction(value)
        and value.__module__ == loaded.__name__
        and not name.startswith("_")
    ]
    return sorted(own, key=lambda item: item[1].__code__.co_firstlineno)


def parse(function: str, docstring: str) -> Formula | None:
    """The formula a docstring states, None when it has no ``Formula:`` section."""
    lines = docstring.splitlines()
    sections: dict[str, list[str]] = {"": []}
    name = ""
    for line in lines:
        match = _SECTION.match(line)
        if match:
            name = match[1]
            sections[name] = [match[2]] if match[2] else []
        else:
            sections[name].append(line)
    if "Formula" not in sections:
        return None
    ident, *text = [line.strip() for line in sections["Formula"] if line.strip()]
    return Formula(
        id=ident,
        text="\n".join(text),
        function=function,
        summary=" ".join(" ".join(sections[""]).split()),
        symbols=MappingProxyType(_symbols(sections.get("Args", []))),
        returns=_flat(sections, "Returns"),
        source=_flat(sections, "Source"),
        valid=_flat(sections, "Valid"),
    )


def _symbols(lines: list[str]) -> dict[str, str]:
    symbols: dict[str, str] = {}
    name = ""
    for line in lines:
        head = re.match(r"^ {4}(\w+): (.*)$", line)
        if head:
            name = head[1]
            symbols[name] = head[2]
        elif line.strip() and name:
            symbols[name] += " " + line.strip()
    return symbols


def _flat(sections: Mapping[str, list[str]], name: str) -> str:
    return " ".join(" ".join(sections.get(name, [])).split())


def theory_page() -> str:
    """The Markdown of ``docs/theory.md``."""
    parts = [INTRODUCTION]
    by_module: dict[str, list[Formula]] = {}
    for made in formulas().values():
        by_module.setdefault(made.function.split(".")[0], []).append(made)
    for chapter, modules in CHAPTERS.items():
        parts.append(f"\n## {chapter}\n")
        parts += [_entry(made) for module in modules for made in by_module.get(module, [])]
    return "".join(parts)


def _entry(made: Formula) -> str:
    rows = "".join(f"| `{name}` | {_cell(text)} |\n" for name, text in made.symbols.items())
    table = f"\n| symbol | meaning |\n|---|---|\n{rows}" if rows else ""
    facts = {
        "Returns": made.returns,
        "Valid": made.valid,
        "Source": made.source,
        "Code": f"`analyzer.roofline.{made.function}`",
    }
    listed = "".join(f"- {name}: {text}\n" for name, text in facts.items() if text)
    return f"\n### {made.id}\n\n{made.summary}\n\n```\n{made.text}\n```\n{table}\n{listed}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    import sys

    sys.stdout.write(theory_page())
