"""Theory as pure functions: what a training step costs at best, and why.

Only the standard library, no state, SI units in every name (``_s``, ``_bytes``, ``_flops``,
``_bytes_per_s``). Each public formula carries an id (``COLL-RING-AR``) that findings cite;
:mod:`analyzer.roofline.registry` collects them and writes ``docs/theory.md``.

* parameters and FLOPs: ``model_dims``, ``hf_config``, ``flops``, ``compute``
* collectives: ``collectives``, ``nccl``, ``hierarchy``, ``torus``, ``achievable``; together
  ``expected.expected_time``
* strategies: ``data_parallel``, ``tensor``, ``combined``, ``context``, ``expert``, ``pipeline``;
  together ``strategies.traffic``, ``pricing.price`` and ``exposure.exposed_minimum_s``
* the rest of a run: ``moe``, ``memory``, ``activations``, ``reliability``, ``hardware``
"""
