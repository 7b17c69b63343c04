"""Phases by what the launching thread was inside of, and by place in the step."""

from __future__ import annotations

import pytest
from tables import AUTOGRAD, event, labeled, span

NODE = "autograd::engine::evaluate_function: MmBackward0"
STEP = [span("ProfilerStep#0", 0, 1000)]


def phases(rows, **trace) -> list[str]:
    trace["ranges"] = [*STEP, *trace.get("ranges", ())]
    return labeled(rows, **trace).activity["phase"].to_list()


def at(launch: int, **more) -> dict:
    return event(launch + 5, launch + 8, launch_ns=launch, **more)


def test_a_step_with_backward_on_its_own_thread():
    rows = [
        at(100),  # forward
        at(300, launch_tid=AUTOGRAD),  # inside an autograd node
        at(350, launch_tid=AUTOGRAD),  # between nodes on the autograd thread
        at(450),  # gradient clipping on the main thread
        at(550),  # the optimizer
        at(700),  # behind it: nothing says
    ]
    trace = {
        "ops": [
            span("aten::mm", 90, 120),
            span(NODE, 290, 320, tid=AUTOGRAD, fwd_tid=1),
            span(NODE, 370, 400, tid=AUTOGRAD, fwd_tid=1),
        ],
        "ranges": [span("Optimizer.step#AdamW.step", 500, 600)],
    }
    assert phases(rows, **trace) == [
        "forward", "backward", "backward", "optimizer", "optimizer", "unknown",
    ]  # fmt: skip


def test_backward_on_the_calling_thread():
    rows = [at(100), at(305), at(330), at(350), at(550)]
    trace = {
        "ops": [
            span(NODE, 300, 320),
            span("MmBackward0", 325, 340, fwd_tid=1),
            span("aten::mm", 326, 335, fwd_tid=0),
        ],
        "ranges": [span("Optimizer.step#SGD.step", 500, 600)],
    }
    assert phases(rows, **trace) == ["forward", "backward", "backward", "optimizer", "optimizer"]


def test_micro_batches_forward_between_two_backwards():
    rows = [at(100), at(200, launch_tid=AUTOGRAD), at(300), at(400, launch_tid=AUTOGRAD)]
    nodes = [span(NODE, 190, 210, tid=AUTOGRAD), span(NODE, 390, 410, tid=AUTOGRAD)]
    assert phases(rows, ops=nodes) == ["forward", "backward", "forward", "backward"]


def test_recomputed_activations_are_backward():
    """A forward range that runs inside an autograd node recomputes for backward."""
    rows = [at(200)]
    trace = {"ops": [span(NODE, 150, 300)], "ranges": [span("PP:0F1", 180, 220)]}
    assert phases(rows, **trace) == ["backward"]


@pytest.mark.parametrize(
    ("name", "phase"),
    [
        ("attn(F)", "forward"),
        ("combine(B)", "backward"),
        ("mlp(W)", "backward"),
        ("Forward 3", "forward"),
        ("Backward 3", "backward"),
        ("PP:1F0", "forward"),
        ("PP:5B0", "backward"),
        ("PP:5I0", "backward"),
        ("PP:5W0", "backward"),
        ("PP:1SEND_F0", "unknown"),
        ("FSDP::post_backward_reduce (layers.1)", "backward"),
        ("FSDP::pre_backward (layers.1)", "backward"),
        ("FSDP::root_post_backward_callback", "backward"),
        ("FSDP::pre_forward (layers.1)", "unknown"),
        ("Optimizer.zero_grad#AdamW.zero_grad", "optimizer"),
    ],
)
def test_named_ranges(name, phase):
    assert phases([at(200)], ranges=[span(name, 150, 250)]) == [phase]


def test_without_evidence_nothing_is_claimed():
    assert phases([at(100), event(500, 510, launch_ns=None)]) == ["unknown", "unknown"]


def test_host_side_operators_are_their_own_launch():
    rows = [event(s, s + 5, launch_ns=None, launch_tid=None, stream=1) for s in (100, 305, 550)]
    trace = {"ops": [span(NODE, 300, 320)], "ranges": [span("Optimizer.step#SGD.step", 500, 600)]}
    assert phases(rows, host_side=True, **trace) == ["forward", "backward", "optimizer"]
