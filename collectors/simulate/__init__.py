"""A simulator of training steps, for samples and tests whose truth is known.

It simulates hosts, streams and collectives of every rank of a device mesh, writes what PyTorch's
profiler would write on GPUs, and says where the time went. Nothing it writes was measured.

    job = simulate(SimSpec(mesh={"dp_shard": 2, "tp": 2}, strategy="fsdp_tp"))
    write(job, Path("out"))
"""

from collectors.simulate.job import SimulatedJob, simulate, write
from collectors.simulate.spec import Defect, SimSpec, parse_mesh

__all__ = ["Defect", "SimSpec", "SimulatedJob", "parse_mesh", "simulate", "write"]
