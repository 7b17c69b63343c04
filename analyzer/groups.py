"""Process groups as traces show them: who is in one, and what its collectives look like."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

P2P_OPS = frozenset({"send", "recv", "send_recv"})
ALL_TO_ALL_OPS = frozenset({"all_to_all", "all_to_allv", "dispatch", "combine"})
TINY_ELEMENTS = 16
"""An all-reduce of no more elements than this is a loss, a norm or a count, not a gradient."""


@dataclass(frozen=True, slots=True)
class OpUse:
    """How one collective was used on a group (tiny ones not counted)."""

    count: int = 0
    nbytes: int = 0
    forward: int = 0
    optimizer: int = 0

    def __add__(self, other: OpUse) -> OpUse:
        return OpUse(
            self.count + other.count,
            self.nbytes + other.nbytes,
            self.forward + other.forward,
            self.optimizer + other.optimizer,
        )


@dataclass(frozen=True, slots=True)
class GroupUse:
    """A process group and what was seen on it, over one or more ranks.

    Attributes:
        ranks: sorted global ranks, empty where no trace tells them.
        size: members; 0 where no trace tells.
        name: process-group name, part of the identity only where ranks are unknown.
        desc: process-group description, empty where it says nothing.
        ops: bulk collectives by canonical name.
        tiny: number of small reductions and barriers.
        hints: axis -> number of bulk collectives whose surroundings point to it.
        ranged: the hinted axes that ranges or operators around the collectives name.
        phases_known: forward and backward could be told apart.
        implied: axis that the kernels' own name implies (DeepEP: ep).
    """

    ranks: tuple[int, ...]
    size: int
    name: str = ""
    desc: str = ""
    ops: Mapping[str, OpUse] = field(default_factory=dict)
    tiny: int = 0
    hints: Mapping[str, int] = field(default_factory=dict)
    ranged: frozenset[str] = frozenset()
    phases_known: bool = True
    implied: str = ""

    @property
    def key(self) -> str:
        """Group key: sorted ranks, else name and size."""
        return ",".join(map(str, self.ranks)) if self.ranks else f"{self.name}:{self.size}"

    @property
    def id(self) -> tuple[str, str]:
        """Rank set and description: one rank set may carry groups of several purposes."""
        return self.key, self.desc

    @property
    def bulk(self) -> int:
        """Bulk collectives of any kind."""
        return sum(use.count for use in self.ops.values())

    def merged(self, other: GroupUse) -> GroupUse:
        """Both uses together; identity is this one's."""
        return replace(
            self,
            ops={
                op: self.ops.get(op, OpUse()) + other.ops.get(op, OpUse())
                for op in {*self.ops, *other.ops}
            },
            tiny=self.tiny + other.tiny,
            hints=dict(Counter(self.hints) + Counter(other.hints)),
            ranged=self.ranged | other.ranged,
            phases_known=self.phases_known and other.phases_known,
        )
