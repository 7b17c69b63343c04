"""Reading the TOML files of the catalogue, once a process."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any


@cache
def load(stem: str) -> Mapping[str, Any]:
    """The parsed ``<stem>.toml`` beside this module."""
    text = files(__package__).joinpath(f"{stem}.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)
