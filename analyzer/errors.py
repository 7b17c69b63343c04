"""Errors a user can act on: one line that names the file or option and the problem.

Exit codes (also in ``docs/cli.md``): 0 fine, 1 a gate failed, 2 bad usage or unusable input,
3 a gate has no verdict, 70 internal error.
"""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """Process exit codes of every command."""

    OK = 0
    GATE_FAILED = 1
    BAD_INPUT = 2
    NO_VERDICT = 3
    INTERNAL = 70


class MeshscopeError(Exception):
    """Base of all errors shown to the user as one line.

    Args:
        message: what is wrong, naming the file, option or rank.
        hint: what to do about it; printed behind the message.
    """

    exit_code: ExitCode = ExitCode.BAD_INPUT

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


class InputError(MeshscopeError):
    """A trace file cannot be used: missing, empty, not a trace, wrong kind of file."""


class NotATraceError(InputError):
    """A sound file of another kind: left out of a directory without alarm."""


class DuplicateRankError(InputError):
    """Two files claim the same rank."""


class UsageError(MeshscopeError):
    """An option or argument of the command line is wrong."""


class ConfigError(MeshscopeError):
    """``analyze.toml`` or ``[tool.meshscope]`` holds an unknown key or a bad value."""


class MissingExtraError(MeshscopeError):
    """A feature needs an optional package that is not installed."""
