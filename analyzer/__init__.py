"""meshscope: where a distributed training step's time goes, per parallel axis.

Public API (imported on first use, so that ``import analyzer`` stays light):
``analyze``, ``Analysis``, ``Config``.
"""

from __future__ import annotations

from typing import Any

from analyzer._version import __version__

__all__ = ["Analysis", "Config", "__version__", "analyze"]

_LAZY = {"analyze": "analyzer.api", "Analysis": "analyzer.api", "Config": "analyzer.config"}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        from importlib import import_module

        return getattr(import_module(_LAZY[name]), name)
    message = f"module 'analyzer' has no attribute {name!r}"
    raise AttributeError(message)
