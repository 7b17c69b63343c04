"""Training programs: what each rank does in a step under a strategy.

:mod:`.step` is the training step over the model's units; each kind of parallelism is one module
with a :class:`.base.Parallelism` whose hooks the step calls.
"""

from collectors.simulate.programs.step import record_job

__all__ = ["record_job"]
