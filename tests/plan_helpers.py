"""Runs ``plan`` as a command, as a user does."""

from __future__ import annotations

import json
from typing import Any

import typer
from typer.testing import CliRunner, Result

from analyzer.plan.command import plan_command
from analyzer.plan.machine import Machine, Stated, build_machine
from analyzer.plan.request import Request, read_accounting, read_devices, read_model, read_strategy


def run(*arguments: str) -> Result:
    """The command's exit code and output; errors are raised by it for the program to print."""
    app = typer.Typer()
    app.command()(plan_command)
    return CliRunner().invoke(app, list(arguments), env={"COLUMNS": "80"})


def plan(**options: object) -> dict[str, Any]:
    """The document of a plan with these options."""
    words = [word for key, value in options.items()
             for word in (f"--{key.replace('_', '-')}", str(value))]  # fmt: skip
    result = run(*words, "--json", "-")
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    document: dict[str, Any] = json.loads(result.stdout)
    return document


def job(
    model: str = "llama3-8b",
    hardware: str = "h100-sxm",
    devices: str = "16",
    batch: float = 2**20,
    sequence: int = 8192,
    strategy: str | None = None,
    **stated: Any,
) -> tuple[Request, Machine]:
    """A request and its machine, for tests below the command."""
    total, shape = read_devices(devices, 1)
    machine = build_machine(hardware, total, shape, 1, Stated(**stated))
    wanted = read_strategy(strategy)
    return Request(read_model(model), batch, sequence, wanted, read_accounting("fsdp")), machine
