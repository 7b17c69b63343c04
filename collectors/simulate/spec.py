"""What to simulate: mesh, model, strategy, defects, and the process groups that follow.

Everything a simulation depends on is in :class:`SimSpec`; equal specs give equal traces.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from analyzer.errors import UsageError
from analyzer.model import AXES, WORLD_AXIS

STRATEGY_WORDS: Mapping[str, tuple[str, ...]] = {
    "ddp": ("dp_replicate",),
    "fsdp": ("dp_shard",),
    "hsdp": ("dp_replicate", "dp_shard"),
    "tp": ("tp",),
    "sp": (),
}
"""Strategy word -> mesh axes it needs. ``sp`` changes what ``tp`` sends, not the mesh."""

DEFECTS: Mapping[str, str] = {
    "no-prefetch": "each FSDP all-gather waits for the compute before it",
    "late-reduce-scatter": "all gradient reductions are issued after the last backward layer",
    "small-collectives": "DDP reduces every parameter on its own, without buckets",
    "host-bound": "the host takes =FACTOR (8) times as long between its launches",
    "sync-every-layer": "an .item() after each layer's forward and backward",
    "data-stall": "the dataloader takes =MICROSECONDS (20000) in every step",
    "slow-link": "collectives of an axis take FACTOR times as long (slow-link:tp=4)",
    "straggler": "a rank's kernels take FACTOR times as long (straggler:3=1.5)",
    "unlabelled": "process groups have no description",
    "missing-launches": "the host's launch calls are missing from the files",
}
"""Defect name -> what it does, for help texts."""

_DEFAULT_VALUES: Mapping[str, float] = {"host-bound": 8, "data-stall": 20_000}
_KEYED = frozenset({"slow-link", "straggler"})


@dataclass(frozen=True, slots=True)
class Defect:
    """One injected defect, ``NAME``, ``NAME=VALUE`` or ``NAME:KEY=VALUE``."""

    name: str
    key: str = ""
    value: float = 1.0

    @classmethod
    def parse(cls, text: str) -> Defect:
        """Parse a ``--defect`` argument; ``UsageError`` names what is wrong with it."""
        head, has_value, value_text = text.partition("=")
        name, has_key, key = head.partition(":")
        if name not in DEFECTS:
            raise UsageError(f"unknown defect {name!r}", f"one of {', '.join(DEFECTS)}")
        if bool(has_key) != (name in _KEYED) or (name in _KEYED and not has_value):
            raise UsageError(f"defect {text!r} is incomplete or has too much", DEFECTS[name])
        if has_value and name not in _KEYED and name not in _DEFAULT_VALUES:
            raise UsageError(f"defect {name!r} takes no value", DEFECTS[name])
        try:
            value = float(value_text) if has_value else _DEFAULT_VALUES.get(name, 1.0)
        except ValueError:
            raise UsageError(f"defect {text!r}: {value_text!r} is not a number") from None
        if not (math.isfinite(value) and value > 0):
            raise UsageError(f"defect {text!r}: the value must be above 0")
        return cls(name, key, value)

    def __str__(self) -> str:
        key = f":{self.key}" if self.key else ""
        has_value = self.name in _KEYED or self.name in _DEFAULT_VALUES
        return f"{self.name}{key}" + (f"={self.value:g}" if has_value else "")


@dataclass(frozen=True, slots=True)
class Group:
    """A communicator: its members, what PyTorch would call it, and the axis it really is."""

    name: str
    desc: str
    ranks: tuple[int, ...]
    axis: str

    @property
    def size(self) -> int:
        """Number of members."""
        return len(self.ranks)


@dataclass(frozen=True, slots=True)
class SimSpec:
    """A job to simulate. Sizes are per the usual transformer notation, tokens per rank.

    Args:
        mesh: Axis -> degree, outermost first.
        strategy: Words of :data:`STRATEGY_WORDS` joined by ``_`` (``fsdp_tp``, ``hsdp_tp_sp``).
        steps: Training steps.
        layers: Transformer blocks.
        hidden: Model width.
        ffn: Inner width of the gated MLP; 0 for 8/3 of ``hidden``, rounded up to 256.
        vocab: Vocabulary.
        sequence: Tokens a sequence.
        batch: Sequences a rank and step.
        defects: Injected defects.
        grad_norm: Clip gradients: a one-element all-reduce over the world before the optimizer
            (where gradients are sharded).
        jitter: Relative half-width of the uniform noise on every duration.
        clock_skew_ns: Largest clock offset of a rank; offsets shift what is written, not the truth.
        clock_drift_ppm: Largest drift of a rank's clock, likewise.
        drop_collectives: Share of its collectives that each rank's file lacks, drawn at random.
        ranks_per_node: Consecutive ranks that share a node and its fast links.
        flows: Write ``ac2g`` flow events.
        sync_events: Write ``cuda_sync`` events beside the synchronising calls.
        seed: Seed of jitter and clock offsets.
        first_step: Number of the first ``ProfilerStep#``.
    """

    mesh: Mapping[str, int]
    strategy: str
    steps: int = 3
    layers: int = 8
    hidden: int = 4096
    ffn: int = 0
    vocab: int = 32_000
    sequence: int = 4096
    batch: int = 1
    defects: tuple[Defect, ...] = ()
    grad_norm: bool = True
    jitter: float = 0.0
    clock_skew_ns: int = 0
    clock_drift_ppm: float = 0.0
    drop_collectives: float = 0.0
    ranks_per_node: int = 8
    flows: bool = False
    sync_events: bool = False
    seed: int = 0
    first_step: int = 10
    words: tuple[str, ...] = field(init=False, default=())

    def __post_init__(self) -> None:
        object.__setattr__(self, "words", parse_strategy(self.strategy))
        _check_mesh(self.mesh, self.words)
        _check_numbers(self)
        self._check_defects()

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return math.prod(self.mesh.values())

    @property
    def inner(self) -> int:
        """Inner width of the MLP."""
        return self.ffn or math.ceil(8 * self.hidden / 3 / 256) * 256

    @property
    def tokens(self) -> int:
        """Tokens a rank and step."""
        return self.sequence * self.batch

    def degree(self, axis: str) -> int:
        """Degree of an axis, 1 when the mesh lacks it."""
        return self.mesh.get(axis, 1)

    def has(self, defect: str) -> bool:
        """Whether a defect is injected."""
        return any(d.name == defect for d in self.defects)

    def factor(self, defect: str, key: str = "", default: float = 1.0) -> float:
        """Product of the values of a defect (for that key), ``default`` without it."""
        values = [d.value for d in self.defects if (d.name, d.key) == (defect, key)]
        return math.prod(values) if values else default

    def _check_defects(self) -> None:
        for defect in self.defects:
            if defect.name == "slow-link" and self.degree(defect.key) == 1:
                raise UsageError(f"defect {defect}: the mesh has no axis {defect.key!r} above 1")
            ranks = {str(rank) for rank in range(self.world_size)}
            if defect.name == "straggler" and defect.key not in ranks:
                raise UsageError(f"defect {defect}: no such rank in a world of {self.world_size}")


def parse_strategy(text: str) -> tuple[str, ...]:
    """Split ``fsdp_tp`` into words; ``UsageError`` for unknown or contradicting ones."""
    words = tuple(text.replace("+", "_").split("_"))
    for word in words:
        if word not in STRATEGY_WORDS:
            raise UsageError(f"unknown strategy {word!r}", f"words: {', '.join(STRATEGY_WORDS)}")
    if len({"ddp", "fsdp", "hsdp"} & set(words)) > 1 or len(set(words)) < len(words):
        raise UsageError(f"strategy {text!r} names data parallelism more than once")
    if "sp" in words and "tp" not in words:
        raise UsageError(f"strategy {text!r}: sp needs tp")
    return words


MAX_DEGREE_DIGITS = 4  # every rank is a file: more ranks are a typing error


def parse_mesh(text: str) -> dict[str, int]:
    """Parse ``dp_shard=4,tp=2`` (outermost first) into axis -> degree."""
    mesh: dict[str, int] = {}
    for part in text.split(","):
        axis, _, degree = part.strip().partition("=")
        if not degree.isdecimal() or len(degree) > MAX_DEGREE_DIGITS or axis in mesh:
            raise UsageError(f"mesh {text!r}: {part!r} is not a new AXIS=DEGREE", "dp_shard=4,tp=2")
        mesh[axis] = int(degree)
    return mesh


def _check_mesh(mesh: Mapping[str, int], words: Iterable[str]) -> None:
    needed = {axis for word in words for axis in STRATEGY_WORDS[word]}
    for axis, degree in mesh.items():
        if axis not in needed or degree < 1:
            known = "known axis" if axis in AXES else f"axis (axes: {', '.join(AXES)})"
            raise UsageError(f"mesh axis {axis}={degree} is no {known} of the strategy")
    if missing := needed - set(mesh):
        raise UsageError(f"the strategy needs mesh axes {', '.join(sorted(missing))}")


def _check_numbers(spec: SimSpec) -> None:
    for name in ("steps", "layers", "hidden", "vocab", "sequence", "batch", "ranks_per_node"):
        if getattr(spec, name) < 1:
            raise UsageError(f"{name} must be at least 1")
    for name in ("jitter", "drop_collectives"):
        if not 0 <= getattr(spec, name) < 1:
            raise UsageError(f"{name} must be in [0, 1)")


def process_groups(spec: SimSpec) -> tuple[Group, ...]:
    """All process groups of the job, named as torch's DeviceMesh names them.

    Group ``0`` is the world. A mesh of one axis makes no further group, so the axis is then the
    world group's (PyTorch loses its name); otherwise every axis above degree 1 has a group for
    each of its slices, numbered through.
    """
    described = not spec.has("unlabelled")
    axes = [axis for axis, degree in spec.mesh.items() if degree > 1]
    world = tuple(range(spec.world_size))
    default_desc = "default_pg" if described else "undefined"
    if len(axes) <= 1:
        return (Group("0", default_desc, world, axes[0] if axes else WORLD_AXIS),)
    groups = [Group("0", default_desc, world, WORLD_AXIS)]
    for axis in axes:
        desc = f"mesh_{axis}" if described else "undefined"
        for ranks in _slices(spec.mesh, axis):
            groups.append(Group(str(len(groups)), desc, ranks, axis))
    return tuple(groups)


def _slices(mesh: Mapping[str, int], axis: str) -> list[tuple[int, ...]]:
    """Rank sets along ``axis``, in the order of their first rank (row-major mesh)."""
    names = list(mesh)
    position = names.index(axis)
    slices: dict[tuple[int, ...], list[int]] = {}
    coordinates = itertools.product(*(range(degree) for degree in mesh.values()))
    for rank, coordinate in enumerate(coordinates):
        others = coordinate[:position] + coordinate[position + 1 :]
        slices.setdefault(others, []).append(rank)
    return [tuple(ranks) for ranks in slices.values()]
