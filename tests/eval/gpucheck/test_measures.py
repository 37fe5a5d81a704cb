"""What `gpu-check` measures of a large batch: names that predictions have, calls of CUDA, memory, vLLM."""

import argparse
import json
import sys
from types import SimpleNamespace

import pytest
import torch

from trl_prorl.embedded.making import byte_tokenizer
from trl_prorl.eval.gpucheck import parts, predicted_page, rollouts, steps
from trl_prorl.eval.gpucheck.cards import CARDS
from trl_prorl.eval.gpucheck.counts import ARMS, Counts, read_counts
from trl_prorl.eval.gpucheck.parts import ROOT
from trl_prorl.eval.gpucheck.predictions import LARGE, QWEN, RECIPE, Prediction
from trl_prorl.eval.gpucheck.verdicts import Range, measured_seconds, predicted_ranges
from trl_prorl.eval.stepcost import settings
from trl_prorl.eval.stepcost.trainers import mixed_precision


SIZE = ["--shape", "tiny", "--prompts", "2", "--num_generations", "4", "--micro_batch", "4", "--device", "cpu"]


@pytest.fixture(scope="module")
def ranges():
    return predicted_ranges(CARDS[-1], read_counts(ROOT / predicted_page.COUNTED))


def test_rollouts_are_measured_under_the_names_of_predictions(tmp_path, ranges):
    rollouts.main([*SIZE, "--longest", "6", "--out", str(tmp_path)])
    numbers = json.loads((tmp_path / "measured.json").read_text())["numbers"]
    assert len(numbers) == 4
    assert numbers.keys() <= ranges.keys()
    assert all(number > 0 for number in numbers.values())
    on_card = rollouts.found_numbers(rollouts.PLAIN, seconds=3.0, tokens=6, peak=2.5)
    assert on_card["plain: a token of all rows, ms"] == 500.0
    assert on_card.keys() <= ranges.keys()


def test_steps_are_trained_and_their_memory_is_read(tmp_path):
    steps.main([*SIZE, "--longest", "6", "--out", str(tmp_path)])
    found = json.loads((tmp_path / "measured.json").read_text())
    assert found["failed"] == {}
    growth = found["numbers"].pop("A: growth of the memory between steps, MiB")
    assert isinstance(growth, float)
    assert found["numbers"] == {}


def test_the_recipes_size_is_measured_under_the_names_of_predictions(ranges):
    arm = {"generation": 1.0, "scoring": 2.0, "update": 3.0}
    numbers = measured_seconds({"a setting": dict.fromkeys(settings.GROWTH_ARMS, arm)})
    assert len(numbers) == 9
    assert numbers.keys() <= ranges.keys()
    assert {"1.0", "2.0", "3.0"} == {str(number) for number in numbers.values()}


ROWS = [{"peak_memory_gib": 10.0 + step % 2} for step in range(6)]
PROFILED = [{"launches": 100, "waits": 20}, {"launches": 110, "waits": 22}]
ROLLOUTS = [{"launches": 1000, "waits": 3}, {"launches": 2600, "waits": 4}]


def test_what_is_measured_on_a_card(ranges):
    counts = steps.name_counts(PROFILED, ROLLOUTS)
    assert counts == {
        "A: launches of a micro-batch": 105,
        "A: waits of a micro-batch": 21,
        "A: launches of a token": 100,  # 1,600 for 16 tokens
        "A: waits of a token": 1 / 16,
    }
    found = steps.summarise(ROWS, [50.0, 60.0, 55.0, 60.0, 55.0, 60.5], counts)
    assert found["failed"] == {}
    numbers = found["numbers"]
    assert numbers.pop("A: growth of the memory between steps, MiB") == 0.5
    assert numbers["A: peak memory of a step, GiB"] == 11.0
    assert numbers.keys() <= ranges.keys()


def test_memory_that_grows_is_a_failure():
    found = steps.summarise(ROWS, [50.0, 60.0, 56.0, 62.0, 58.0, 64.0], {})
    assert found["failed"] == {steps.GROWTH: "after the last step 4.0 MiB more are held than after the second"}
    assert steps.summarise(ROWS, [50.0, 60.0, 56.0, 62.0, 58.0, 64.0], None)["failed"] == {}  # a process's, on a CPU


def test_what_is_measured_has_the_size_of_what_is_predicted():
    """Rollouts that of the large batch, steps that of the recipes: the size of each part, and of its predictions."""
    sizes = {parts.ROLLOUTS: LARGE, parts.VLLM: LARGE, parts.STEPS: RECIPE}
    for name, work in sizes.items():
        samplers = argparse.ArgumentParser()
        samplers.add_argument("--samplers")
        _, size_of_batch = samplers.parse_known_args(parts.ON_CARD[name])
        args = settings.parse(size_of_batch)
        size = (args.prompts, args.num_generations, args.micro_batch, args.longest)
        assert size == (work.prompts, work.completions, work.micro_batch, work.completion_tokens), name
    slow, *_ = CARDS  # whose bounds are not launches, of which both sizes ask as many
    table = read_counts(ROOT / predicted_page.COUNTED)
    counts = Counts(table, next(arm for arm in ARMS if arm.name == "A"))
    recipe, large = (Prediction(slow, QWEN, work, counts) for work in (RECIPE, LARGE))
    assert large.token.seconds > 1.5 * recipe.token.seconds
    ranges = predicted_ranges(slow, table)
    assert ranges["A: a token of all rows, ms"].least == 1000 * large.token.seconds
    assert ranges["A: a generation batch, s"].least == large.generation
    assert ranges["A: memory of a generation, GiB"].least == large.generation_memory
    assert ranges["A: peak memory of a step, GiB"].least == recipe.memory
    for stage in ("generation", "scoring", "update"):
        assert ranges[f"A: {stage} of a step, s"].least == recipe.seconds(stage)


def test_which_calls_are_launches_and_which_are_waits():
    events = {
        "cudaLaunchKernel": 7,
        "cuLaunchKernelEx": 2,
        "cudaMemcpyAsync": 3,
        "cudaStreamSynchronize": 4,
        "cudaDeviceSynchronize": 1,
        "cudaMalloc": 50,
        "aten::mm": 60,
    }
    assert steps.count_calls(events.items()) == {"launches": 12, "waits": 5}


def test_the_micro_batches_that_are_profiled(monkeypatch):
    seen = []
    trainer = SimpleNamespace(training_step=lambda number: number)

    def profile_call(call, number):
        seen.append(number)
        return call(number), {"launches": number, "waits": 0}

    monkeypatch.setattr(steps, "profile_call", profile_call)
    found = steps.profile_micro_batches(trainer, [1, 3])
    assert [trainer.training_step(number) for number in range(5)] == list(range(5))
    assert seen == [1, 3]
    assert found == [{"launches": 1, "waits": 0}, {"launches": 3, "waits": 0}]


def test_every_batch_of_the_steps_is_the_same():
    args = settings.parse(SIZE)
    batches = steps.SameBatch(args, 1.0, fixed=6)
    assert batches.draw(3) == batches.draw(0) == settings.Batches(args, 1.0, fixed=6).draw(0)
    assert settings.Batches(args, 1.0, fixed=6).draw(3) != batches.draw(3)


def test_vllm_samples_the_same_prompts(monkeypatch, tmp_path):
    """vLLM is not among the test's packages: what it is asked for."""
    calls = []

    class Engine:
        def __init__(self, model, **settings):
            assert settings.pop("skip_tokenizer_init")
            calls.append(settings)

        def generate(self, prompts, params, use_tqdm):
            calls.append((prompts, params))

    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(LLM=Engine, SamplingParams=dict))
    rollouts.main([*SIZE, "--dtype", "bfloat16", "--longest", "6", "--samplers", "vLLM", "--out", str(tmp_path)])
    made, (_, warm_up), (prompts, params) = calls
    expected, _ = settings.Batches(settings.parse(SIZE), 1.0, fixed=6).draw(0)
    assert [prompt["prompt_token_ids"] for prompt in prompts] == expected
    assert params == {"temperature": 1.0, "max_tokens": 6, "ignore_eos": True, "detokenize": False}
    assert warm_up["max_tokens"] == rollouts.WARM_UP
    assert made["dtype"] == "bfloat16"
    assert made["max_model_len"] == 6 + max(map(len, expected))
    numbers = json.loads((tmp_path / "measured.json").read_text())["numbers"]
    assert set(numbers) == {"vLLM: a token of all rows, ms", "vLLM: a generation batch, s"}


def test_what_confirms_a_prediction(ranges):
    assert Range(2.0).verdict(1.9) == "refuted"
    assert Range(2.0).verdict(2.0) == Range(2.0).verdict(50.0) == "confirmed"
    launches = ranges["A: launches of a token"]
    assert launches.verdict(launches.least) == launches.verdict(1.2 * launches.least) == "confirmed"
    assert launches.verdict(1.3 * launches.least) == "refuted"
    waits = ranges["A: waits of a micro-batch"]
    assert waits.verdict(waits.most) == "confirmed"
    assert waits.verdict(waits.most + 1) == "refuted"


def test_a_card_without_bf16_multiplies_in_fp16_with_weights_in_fp32(monkeypatch):
    assert settings.default_dtype("cpu") == "float32"
    assert settings.default_dtype("cuda") == "bfloat16"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: including_emulation)
    assert settings.default_dtype("cuda") == "float16"
    for dtype, of_weights in {"float16": torch.float32, "bfloat16": torch.bfloat16}.items():
        model = settings.new_model(settings.parse([*SIZE, "--dtype", dtype]), byte_tokenizer())
        assert model.dtype == of_weights
    assert mixed_precision(torch.float16) == {"bf16": False, "fp16": True}
    assert mixed_precision(torch.bfloat16) == {"bf16": True, "fp16": False}
    assert mixed_precision(torch.float32) == {"bf16": False, "fp16": False}
