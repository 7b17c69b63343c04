"""The documentation's example prints what it shows, and every option is explained."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import typer.main
from plan_helpers import run

from analyzer.plan.command import plan_command
from analyzer.roofline.registry import formulas

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "plan.md").read_text()


def test_the_example_prints_what_the_page_shows() -> None:
    block = re.search(r"```console\n\$ meshscope plan (.*?)\n(.*?)\n```", PAGE, re.DOTALL)
    assert block
    output = run(*shlex.split(block[1])).stdout
    lines = "\n".join(line.rstrip() for line in output.splitlines())
    assert lines.startswith(block[2] + "\n")


def test_every_option_is_explained() -> None:
    app = typer.Typer()
    app.command()(plan_command)
    for parameter in typer.main.get_command(app).params:
        for option in parameter.opts:
            if option.startswith("--") and option not in ("--install-completion",
                                                          "--show-completion"):  # fmt: skip
                assert f"`{option}" in PAGE, option


def test_formula_ids_exist() -> None:
    named = set(re.findall(r"\b(?:DP|TP|MIX|MEM|PP|CP|EP|REL|COLL|FLOPS|EXPOSE)-[A-Z0-9-]+", PAGE))
    assert named
    assert named <= set(formulas())
