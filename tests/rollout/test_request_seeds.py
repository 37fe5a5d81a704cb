"""Seeds of requests to a stand-in for vLLM's engine; `make test-vllm` has the real one."""

import copy
from types import SimpleNamespace

import torch

from trl_prorl.extras.vllm import RequestSeeds, seed_requests


class Parameters(SimpleNamespace):
    def clone(self):
        return copy.copy(self)


class Engine:
    """Keeps what it was asked, in order. At most 12 tokens of prompts are computed at once."""

    def __init__(self):
        self.asked = []
        self.llm_engine = SimpleNamespace(vllm_config=SimpleNamespace())
        self.llm_engine.vllm_config.scheduler_config = SimpleNamespace(max_num_batched_tokens=12)

    def reset_prefix_cache(self):
        self.asked.append("reset")

    def generate(self, prompts, sampling_params, **named):
        self.asked.append(sampling_params)


def make_trainer(seed=1, process=0, size=1, device="cpu"):
    """A trainer with the attributes that seeds depend on."""
    accelerator = SimpleNamespace(process_index=process, device=torch.device(device))
    generation = SimpleNamespace(llm=Engine(), tensor_parallel_size=size, accelerator=accelerator)
    trainer = SimpleNamespace(
        args=SimpleNamespace(seed=seed),
        state=SimpleNamespace(global_step=0),
        model=SimpleNamespace(training=True),
        accelerator=accelerator,
        vllm_generation=generation,
    )
    seed_requests(generation, RequestSeeds(trainer))
    return trainer


def sample(trainer, prompts=4, length=3, **keys):
    """Return what the engine is given."""
    engine = trainer.vllm_generation.llm
    given = Parameters(**({"temperature": 0.7, "seed": None} | keys))
    engine.generate([{"prompt_token_ids": [1] * length}] * prompts, sampling_params=given, use_tqdm=False)
    forgotten, asked = engine.asked[-2:]
    assert forgotten == "reset"  # nothing is left of earlier batches
    return asked


def seeds_of(asked):
    assert {one.temperature for one in asked} == {0.7}
    return [one.seed for one in asked]


def test_each_request_has_its_own_seed_and_the_next_batch_others():
    trainer = make_trainer()
    seeds = [*seeds_of(sample(trainer)), *seeds_of(sample(trainer))]
    trainer.model.training = False
    seeds += seeds_of(sample(trainer))
    trainer.state.global_step = 1
    seeds += seeds_of(sample(trainer))
    trainer.model.training = True
    seeds += seeds_of(sample(trainer))
    assert len(set(seeds)) == 20
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_a_trainer_that_begins_at_a_step_continues_with_the_seeds_of_that_step():
    """Evaluations before it, which are not repeated, and torch's generator make no difference."""
    first = make_trainer()
    for step in (0, 1, 2):
        first.state.global_step = step
        for training in (False, False, True):
            first.model.training = training
            sample(first)
    second = make_trainer()
    second.state.global_step = 2
    torch.rand(3)
    second_batch = [seeds_of(sample(second)), seeds_of(sample(second))]
    assert second_batch == [seeds_of(first.vllm_generation.llm.asked[-1]), seeds_of(sample(first))]


def test_engines_and_runs_differ_and_processes_of_one_engine_do_not():
    trainers = [make_trainer(), make_trainer(seed=2), make_trainer(process=1)]
    assert len({tuple(seeds_of(sample(trainer))) for trainer in trainers}) == 3
    pair = [make_trainer(process=process, size=2) for process in (2, 3)]
    assert seeds_of(sample(pair[0])) == seeds_of(sample(pair[1]))


def test_a_cpu_engine_gets_no_seeds_if_it_may_cut_a_prompt():
    """Torch cannot rewind a generator on a CPU."""
    assert sample(make_trainer(), length=4).seed is None
    assert len(sample(make_trainer(device="cuda"), length=4)) == 4
