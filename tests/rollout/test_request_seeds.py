"""Seeds of requests to a stand-in for vLLM's engine; `make test-vllm` has the real one."""

import copy
from types import SimpleNamespace

import pytest
import torch

from trl_prorl.rollout import request_seeds
from trl_prorl.rollout.request_seeds import describe_engine, make_engine_invariant, seed_requests


class Parameters(SimpleNamespace):
    def clone(self):
        return copy.copy(self)


class Engine:
    """Keeps what it was asked, in order."""

    def __init__(self):
        self.asked = []

    def reset_prefix_cache(self):
        self.asked.append("reset")

    def generate(self, prompts, sampling_params, use_tqdm):
        self.asked.append([(one.temperature, one.seed) for one in sampling_params])


def sample(generation, prompts=4):
    generation.llm.generate([[1]] * prompts, sampling_params=Parameters(temperature=0.7, seed=None), use_tqdm=False)
    forgotten, requests = generation.llm.asked[-2:]
    assert forgotten == "reset"
    assert {temperature for temperature, _ in requests} == {0.7}
    return [seed for _, seed in requests]


@pytest.fixture
def generation():
    made = SimpleNamespace(llm=Engine(), tensor_parallel_size=1)
    seed_requests(made)
    return made


def test_each_request_has_its_own_seed_and_the_next_batch_has_others(generation):
    seeds = [*sample(generation), *sample(generation)]
    assert len(set(seeds)) == 8
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_the_seeds_follow_torch_s_generator_which_a_checkpoint_saves(generation):
    state = torch.get_rng_state()
    seeds = [sample(generation), sample(generation)]
    torch.set_rng_state(state)
    assert [sample(generation), sample(generation)] == seeds


def test_processes_that_share_an_engine_send_the_same_seeds(generation, monkeypatch):
    """Each sends all prompts of the group; what is drawn by the second is replaced by what the first drew."""

    def gather(into, mine, group):
        assert group == "pair"
        into[:] = [5, mine]

    monkeypatch.setattr(torch.distributed, "all_gather_object", gather)
    generation.tensor_parallel_size = 2
    generation.tp_group = "pair"
    assert sample(generation, 3) == [5, 6, 7]


@pytest.mark.parametrize(
    "capability, given, expected",
    [((9, 0), None, "1"), ((12, 0), None, "1"), ((8, 9), None, None), ((9, 0), "0", "0"), (None, None, None)],
)
def test_batch_invariance_is_on_where_every_version_has_it_unless_the_environment_says_otherwise(
    capability, given, expected, monkeypatch
):
    environment = {} if given is None else {"VLLM_BATCH_INVARIANT": given}
    monkeypatch.setattr(torch.cuda, "is_available", lambda: capability is not None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    monkeypatch.setattr(request_seeds, "os", SimpleNamespace(environ=environment))
    make_engine_invariant()
    assert environment.get("VLLM_BATCH_INVARIANT") == expected


def test_the_record_names_what_holds(monkeypatch):
    monkeypatch.setenv("VLLM_BATCH_INVARIANT", "1")
    assert describe_engine(SimpleNamespace(vllm_mode="colocate")).endswith("batch invariance on")
    monkeypatch.setenv("VLLM_BATCH_INVARIANT", "0")
    assert describe_engine(SimpleNamespace(vllm_mode="colocate")).endswith("batch invariance off")
    assert "not repeated" in describe_engine(SimpleNamespace(vllm_mode="server"))
