"""The model a job trained, as the user or the collector states it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from analyzer.errors import UsageError
from analyzer.roofline.flops import Convention, convention_flops_per_token
from analyzer.roofline.hf_config import from_hf_config
from analyzer.roofline.model_dims import ModelDims, dims_of, find_model

MODEL_CONVENTIONS = (Convention.MEGATRON, Convention.PALM, Convention.TORCHTITAN, Convention.K22)
"""Conventions that count what the model needs; the others count what the hardware executes."""


@dataclass(frozen=True, slots=True)
class ModelRun:
    """What the user (or the collector) states about the model that was trained.

    Attributes:
        dims: dimensions of the model.
        tokens_per_step: tokens of the whole job in one optimizer step, over all ranks and
            micro-batches.
        sequence: tokens of a sequence.
        convention: who counts.
    """

    dims: ModelDims
    tokens_per_step: int
    sequence: int
    convention: Convention = Convention.MEGATRON

    def flops_per_step(self) -> float:
        """Model FLOPs of the whole job in one step."""
        per_token = convention_flops_per_token(self.dims, self.sequence, self.convention)
        return per_token * self.tokens_per_step


def stated_run(
    model: str | None,
    tokens_per_step: int | None = None,
    sequence: int | None = None,
    convention: str | None = None,
) -> ModelRun | None:
    """The run that options describe, None where they do not.

    Args:
        model: name in ``catalog/models.toml``, or path of a Hugging Face ``config.json``.
        tokens_per_step: tokens of the whole job in a step.
        sequence: tokens of a sequence.
        convention: one of :data:`MODEL_CONVENTIONS`.

    Raises:
        UsageError: an unknown model or convention, or a number that is missing.
    """
    if model is None:
        if tokens_per_step or sequence or convention:
            raise UsageError("--tokens-per-step, --sequence and --flops-convention need --model")
        return None
    if not tokens_per_step or not sequence:
        raise UsageError("--model needs --tokens-per-step and --sequence")
    names = [c.value for c in MODEL_CONVENTIONS]
    if convention is not None and convention not in names:
        raise UsageError(f"unknown FLOPs convention {convention!r}", "use " + ", ".join(names))
    counted = Convention(convention) if convention else Convention.MEGATRON
    return ModelRun(_dims(model), tokens_per_step, sequence, counted)


def _dims(model: str) -> ModelDims:
    if not model.endswith(".json"):
        return find_model(model)
    try:
        config = json.loads(Path(model).read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{model}: cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise UsageError(f"{model}: is not JSON") from None
    if not isinstance(config, dict):
        raise UsageError(f"{model}: is not a model's config.json")
    return from_hf_config(config)


def written_run(embedded: Mapping[str, Any]) -> ModelRun | None:
    """The run a collector wrote into the trace, None where it did not write all of it.

    Args:
        embedded: the collector's metadata: ``model`` (a name, or a table with the keys of
            :class:`~analyzer.roofline.model_dims.ModelDims`), ``tokens_per_step``, ``sequence``.
    """
    model, tokens, sequence = (embedded.get(k) for k in ("model", "tokens_per_step", "sequence"))
    if not isinstance(tokens, int) or not isinstance(sequence, int) or min(tokens, sequence) < 1:
        return None
    try:
        if isinstance(model, str):
            return ModelRun(find_model(model), tokens, sequence)
        return ModelRun(dims_of(model), tokens, sequence) if isinstance(model, dict) else None
    except UsageError:
        return None
