"""The parts, in their order: first what says whether the numbers are right, then what things cost."""

from trl_prorl.eval.gpucheck.attention import attention
from trl_prorl.eval.gpucheck.cost import cost_of
from trl_prorl.eval.gpucheck.equivalences import equivalences
from trl_prorl.eval.gpucheck.generation import generation
from trl_prorl.eval.gpucheck.marked_tests import marked_tests
from trl_prorl.eval.gpucheck.models import models
from trl_prorl.eval.gpucheck.parity import parity
from trl_prorl.eval.gpucheck.part import Part
from trl_prorl.eval.gpucheck.resets import resets
from trl_prorl.eval.gpucheck.resume import resume
from trl_prorl.eval.gpucheck.sharding import sharding
from trl_prorl.eval.gpucheck.stops import stops
from trl_prorl.eval.gpucheck.timers import timers


PARTS = {
    part.name: part
    for part in (
        Part("parity", "Right: parity with TRL", parity, limit=240),
        Part("equivalences", "Right: equivalences and counts", equivalences, limit=90),
        Part("resets", "Right: resets of every optimizer", resets, limit=90),
        Part("timers", "Right: seconds and memory of a step", timers, limit=60),
        Part("models", "Right: gradient checkpointing, a base in 4 bits", models, limit=90),
        Part("stops", "Right: NaN stops a run", stops, limit=120),
        Part("resume", "Right: killed, and resumed to the bit", resume, limit=240),
        Part("sharding", "Right: FSDP2 and ZeRO-2 with one process", sharding, limit=180),
        Part("tests", "Right: the tests marked gpu", marked_tests, limit=120),
        Part("cost", "The cost of a step", cost_of(0), limit=360),
        Part("cost-large", "The cost of a step, the larger model", cost_of(1), limit=300),
        Part("attention", "Which attention", attention, limit=300),
        Part("generation", "Generation", generation, limit=480),
    )
}
