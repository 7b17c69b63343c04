"""The rules' documentation pages, rendered from what the rules say about themselves."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterable
from pathlib import Path

from rules.registry import built_in
from rules.spec import ALL_AXES, AnyRule

INDEX = "README.md"
FAMILIES = {
    "CMP": "Compute",
    "COM": "Communication",
    "HST": "Host",
    "STR": "Strategy",
    "TRC": "Trace",
}


def render(rule: AnyRule) -> str:
    """The page of one rule: facts, its module's docstring, options."""
    axes = "all" if rule.axes == ALL_AXES else ", ".join(rule.axes) or "none"
    needs = ", ".join(need.name for need in rule.needs) or "nothing"
    facts = [
        ("Severity", f"up to {rule.severity.value}"),
        ("Axes", axes),
        ("Needs", needs),
        ("Since", rule.since),
    ]
    return "\n".join(
        [
            f"# {rule.code} {rule.name}",
            "",
            *(f"- {label}: {text}" for label, text in facts),
            "",
            rule.explanation.rstrip(),
            "",
            *_options(rule),
        ]
    )


def _options(rule: AnyRule) -> list[str]:
    fields = dataclasses.fields(rule.options)
    rows = [
        f"| `{f.name}` | {f.default} | {f.metadata['unit']} | {f.metadata['doc']} |" for f in fields
    ]
    example = fields[0]
    return [
        "## Options",
        "",
        "| option | default | unit | meaning |",
        "|---|---|---|---|",
        *rows,
        "",
        "In `analyze.toml`:",
        "",
        "```toml",
        f"[rules.{rule.name}]",
        f"{example.name} = {example.default}",
        'level = "warn"  # off, warn or error',
        "```",
        "",
    ]


def render_index(rules: Iterable[AnyRule]) -> str:
    """The list of rules, by family."""
    lines = [
        "# Rules",
        "",
        "Every run gives one outcome a rule: `fail` (a finding is an error), `warn`, `pass`,",
        "`not_applicable` with the reason, or `error` when the rule itself failed. Findings of",
        "severity info leave the outcome at `pass`. Limits and levels are set in `analyze.toml`",
        "([configuration](../config.md)); [writing a rule](../writing-a-rule.md) takes one module.",
        "",
    ]
    by_family: dict[str, list[AnyRule]] = {}
    for rule in rules:
        by_family.setdefault(rule.code.rstrip("0123456789"), []).append(rule)
    for family, members in by_family.items():
        lines += [f"## {FAMILIES.get(family, family)}", ""]
        lines += ["| code | rule | finds | up to |", "|---|---|---|---|"]
        lines += [
            f"| {r.code} | [{r.name}]({r.name}.md) | {r.title} | {r.severity.value} |"
            for r in members
        ]
        lines.append("")
    return "\n".join(lines)


def pages() -> dict[str, str]:
    """File name -> content of every page under ``docs/rules``."""
    return {
        **{f"{rule.name}.md": render(rule) for rule in built_in()},
        INDEX: render_index(built_in()),
    }


def main() -> None:
    """Write the pages into the directory given as argument (``docs/rules``)."""
    directory = Path(sys.argv[1] if len(sys.argv) > 1 else "docs/rules")
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in pages().items():
        (directory / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
