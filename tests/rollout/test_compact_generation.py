"""Compact sampling: against `generate`, against enumeration, in a training, and where something stands against it."""

import copy
import itertools
from collections import Counter

import pytest
import torch
from emulated_graphs import emulate
from packed_models import build, needs_states
from peft import LoraConfig, get_peft_model
from run_record import read_events, read_rows
from scipy.stats import chisquare
from tiny_run import LORA, disturb_adapter, load_with_new_adapter, record_results
from transformers import AutoModelForCausalLM, GenerationConfig
from transformers.cache_utils import DynamicLayer

from trl_prorl.cli.dropout import evaluation_mode
from trl_prorl.cli.prompts import cut_at_end, pad_left
from trl_prorl.fast.batch_cache import Room, RoomyLayer
from trl_prorl.fast.compact import compact_sample
from trl_prorl.fast.generation import MERGED_BOUND
from trl_prorl.fast.merged_copy import FusedLayers, MergedCopy, merge_obstacle
from trl_prorl.fast.recording import Recordings
from trl_prorl.fast.rows import BLOCK, Rows, draw


PROMPTS = [[5, 6, 7], [9, 8, 7, 6, 5, 4], [11]]
COPIES = torch.tensor([0, 0, 0, 1, 1, 2, 2, 2])


@pytest.fixture(scope="module")
def model(tiny_model):
    return AutoModelForCausalLM.from_pretrained(tiny_model).eval()


def config(**keys):
    plain = {"max_new_tokens": 12, "pad_token_id": 0, "eos_token_id": None, "disable_compile": True}
    return GenerationConfig(**plain | keys)


def compact(model, prompts=PROMPTS, copies=COPIES, seed=0, logps_at=None, recordings=None, **keys):
    """Compact sampling: its result, and its completions alone."""
    ids, mask = pad_left(prompts, 0)
    given = {"recordings": recordings} if logps_at is None else {"recordings": recordings, "logps_at": logps_at}
    given |= {"generation_config": config(**keys), "custom_generate": compact_sample, "copies": copies}
    torch.manual_seed(seed)
    result = model.generate(input_ids=ids, attention_mask=mask, **given)
    return result, result.ids[:, ids.shape[1] :]


@pytest.fixture(params=[1, 16])
def seldom(request, monkeypatch):
    """How often the device is looked at: rows that have ended go on as padding until then."""
    monkeypatch.setattr("trl_prorl.fast.compact.tokens_between_checks", lambda device: request.param)
    return request.param


@pytest.fixture
def made(monkeypatch):
    """The recordings of a token's step, on a CPU; test_on_gpu.py has real ones."""
    return emulate(monkeypatch)


@pytest.mark.parametrize(
    "keys",
    [
        {"eos_token_id": list(range(0, 256, 3))},
        {"eos_token_id": list(range(0, 300))},
        {"repetition_penalty": 1.7},
        {"no_repeat_ngram_size": 2, "eos_token_id": [7]},
        {"min_new_tokens": 5, "eos_token_id": list(range(0, 256, 2))},
        {"suppress_tokens": list(range(20, 200))},
        {"max_new_tokens": 1},
        {"max_new_tokens": 150},
    ],
    ids=str,
)
@pytest.mark.parametrize("replays", [False, True])
def test_greedy_tokens_are_those_of_generate(model, keys, seldom, replays, made):
    ids, mask = pad_left(PROMPTS, 0)
    settings = config(do_sample=False, **keys)
    theirs = model.generate(input_ids=ids[COPIES], attention_mask=mask[COPIES], generation_config=settings)
    recordings = Recordings() if replays else None
    assert torch.equal(theirs, compact(model, do_sample=False, recordings=recordings, **keys)[0].ids)
    assert replays or not made


@pytest.fixture
def numbers_of_rows(monkeypatch):
    """The random numbers of a row do not depend on how many others there still are."""

    def draw_numbers(rows):
        numbers = torch.rand(100, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(rows.length))
        rows.numbers.copy_(numbers[rows.index])

    monkeypatch.setattr(Rows, "draw_numbers", draw_numbers)


# `generate` drops a mask without padding.
ALIKE = [[5, 6, 7], [9, 8, 7], [1, 2, 3]]
LONG = {"max_new_tokens": 140}  # in two spans
RECORDED = [LONG, {"top_k": 7}, LONG | {"eos_token_id": [3, 4]}, {"do_sample": False}, {"prompts": ALIKE}]


@pytest.mark.parametrize("keys", RECORDED, ids=str)
def test_recorded_samples_are_those_of_the_same_random_numbers(model, keys, made, numbers_of_rows):
    """Whether the graph chooses the token, or processors outside of it do."""
    keys = {"do_sample": True, "top_k": 0, "temperature": 0.7, "max_new_tokens": 20, "logps_at": 0.7} | keys
    computed, _ = compact(model, **keys)
    recorded, _ = compact(model, recordings=Recordings(), **keys)
    assert (computed.recorded, recorded.recorded) == (False, True)
    assert len(made) == (2 if keys["max_new_tokens"] > 128 else 1)  # a span has 128 tokens
    assert torch.equal(computed.ids, recorded.ids)
    assert torch.allclose(computed.logps, recorded.logps, atol=1e-5)


def batch(number):
    """Prompts, copies and the number of new tokens of one of five different batches."""
    prompts = [[3 + number, 4, 5] * (12 + 2 * number), [6, 7]]
    return {"prompts": prompts, "copies": torch.tensor([0] * (6 + number) + [1] * 10), "max_new_tokens": 80 - number}


def test_later_batches_are_replayed(model, made, numbers_of_rows):
    """16 to 20 rows of up to 136 tokens, which end one after another: recorded are 24, 16 and 8 rows, in two spans."""
    model = copy.deepcopy(model).double()  # log-probabilities are in fp32
    recordings = Recordings()
    keys = {"do_sample": True, "top_k": 0, "logps_at": 1.0, "eos_token_id": list(range(3, 10))}
    numbers = []
    for number in (4, 0, 1, 2, 3):
        computed, _ = compact(model, **keys, **batch(number), seed=number)
        before = len(made)
        recorded, _ = compact(model, recordings=recordings, **keys, **batch(number), seed=number)
        numbers.append(len(made) - before)
        assert torch.equal(computed.ids, recorded.ids)
        torch.testing.assert_close(computed.logps, recorded.logps, atol=1e-6, rtol=0)
    assert numbers[0] > 3
    assert not any(numbers[1:])


def test_a_recording_sees_new_weights_and_ends_with_another_model(model, made, numbers_of_rows):
    """Values change in place; or another tensor takes a weight's place, as by a load; or training mode."""
    model = copy.deepcopy(model)
    recordings = Recordings()
    keys = {"do_sample": True, "top_k": 0, "max_new_tokens": 20}

    def new_recordings():
        computed, _ = compact(model, **keys)
        before = len(made)
        recorded, _ = compact(model, recordings=recordings, **keys)
        assert torch.equal(computed.ids, recorded.ids)
        results.append(recorded.ids)
        return len(made) - before

    results = []
    weight = model.model.layers[1].mlp.down_proj.weight
    assert new_recordings() == 1
    with torch.no_grad():
        weight.mul_(-2)
    assert new_recordings() == 0
    weight.data = weight.data * -2
    assert new_recordings() == 1
    model.train()
    assert new_recordings() == 1
    keys["temperature"] = 2.0
    assert new_recordings() == 1
    keys["max_new_tokens"] = 200
    assert new_recordings() == 2
    keys["max_new_tokens"] = 20
    assert new_recordings() == 0
    assert len({str(ids.tolist()) for ids in results[:3]}) == 3


def test_what_autocast_casts_for_a_batch_is_not_kept(model, made):
    recordings = Recordings()
    for is_trained, lasts in ((True, False), (False, True)):
        narrow = copy.deepcopy(model).requires_grad_(is_trained)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            compact(narrow, recordings=recordings, max_new_tokens=3)
        assert recordings.lasts == lasts


@pytest.fixture
def as_on_a_gpu(made, numbers_of_rows, monkeypatch):
    """Recorded, with nothing packed, on a device with room for graphs, and whose largest step is known."""
    monkeypatch.setattr("trl_prorl.fast.merged_copy.can_be_packed", lambda layer: False)
    monkeypatch.setattr("trl_prorl.fast.generation.usable_bytes", lambda device: 100 * 2**20)

    def record(trainer):
        trainer.compact._recordings = Recordings()
        trainer.compact._peak = 0.0
        return trainer

    return record


@pytest.mark.parametrize("lora", [False, True])
def test_a_training_whose_graphs_are_kept_is_that_without_graphs(
    make_trainer, as_on_a_gpu, made, lora, largest_difference
):
    """Over updates, resets of the reference and of the optimizer; rows and prompts differ from batch to batch."""
    keys = {**A, "lora": lora, "max_steps": 8, "optimizer_reset": "hard", "learning_rate": 1e-2}
    plain = make_trainer(**keys)
    plain.train()
    trainer = as_on_a_gpu(make_trainer(**keys))
    numbers = []
    sample = trainer.compact.sample

    def counted(*args, **more):
        before = len(made)
        result = sample(*args, **more)
        numbers.append(len(made) - before)
        return result

    trainer.compact.sample = counted
    trainer.train()
    assert numbers == [1, 1, 0, 0, 0]  # the first ones are compared with the policy's own forward
    assert trainer.compact._held > 0
    assert largest_difference(plain, trainer) == 0.0


def holds_merged(merged):
    """Whether any layer of the copy has merged weights, as they are or reordered for oneDNN."""
    for layer in merged._layers:
        weights = layer._fused.parameters() if isinstance(layer, FusedLayers) else layer._memory.values()
        is_packed = layer._packed is not None and layer._packed._packed is not None
        if is_packed or any(tensor.numel() for tensor in weights):
            return True
    return False


def test_other_attention_than_torch_s_is_not_recorded(model, made):
    other = copy.deepcopy(model)
    other.set_attn_implementation("eager")
    assert not compact(other, do_sample=False, recordings=Recordings())[0].recorded


def test_a_recorded_token_is_written_in_the_dtype_of_the_room():
    """Rotation makes keys fp32 under autocast, and before 5.24 transformers keeps values in the dtype of keys."""
    filled = DynamicLayer()
    filled.update(torch.zeros(1, 1, 2, 4), torch.zeros(1, 1, 2, 4))
    layer = RoomyLayer(filled, torch.tensor([0]), Room(1, 4, filled.device).take)
    layer.show_span(4, torch.tensor([2]))
    _, values = layer.update(torch.ones(1, 1, 1, 4), torch.ones(1, 1, 1, 4, dtype=torch.bfloat16))
    assert (values.dtype, values[0, 0].sum(dim=1).tolist()) == (torch.float32, [0, 0, 4, 0])


LEFT = [10, 20, 30, 40]


def exact(model, prompt, temperature, top_p, length):
    """Probabilities of all sequences of `LEFT`, token by token, by a plain forward."""
    found = {(): 1.0}
    for _ in range(length):
        longer = {}
        for sequence, chance in found.items():
            logits = model(torch.tensor([[*prompt, *sequence]])).logits[0, -1, LEFT].double()
            shares = (logits / temperature).softmax(-1)
            order = shares.argsort(descending=True)
            shares[order[shares[order].cumsum(0) - shares[order] >= top_p]] = 0.0
            chances = (chance * shares / shares.sum()).tolist()
            longer |= {(*sequence, token): chance for token, chance in zip(LEFT, chances, strict=True)}
        found = longer
    return found


@torch.no_grad()
def test_samples_have_the_right_distribution_and_are_independent(model):
    """64 sequences of three of four tokens, by enumeration, for two prompts of different lengths in one batch."""
    temperature = 6.0
    top_p = 0.7
    number = 4000
    length = 3
    copies = torch.arange(2).repeat_interleave(number)
    keys = {"do_sample": True, "temperature": temperature, "top_p": top_p, "top_k": 0, "max_new_tokens": length}
    keys["suppress_tokens"] = [token for token in range(model.config.vocab_size) if token not in LEFT]
    _, drawn = compact(model, PROMPTS[:2], copies, seed=5, **keys)
    for place, prompt in enumerate(PROMPTS[:2]):
        mine = drawn[copies == place]
        expected = exact(model, prompt, temperature, top_p, length)
        counts = Counter(map(tuple, mine.tolist()))
        possible = [sequence for sequence, share in expected.items() if share > 0.0]
        assert len(possible) < len(expected)
        assert counts.keys() <= {*possible}
        wanted = [number * expected[sequence] for sequence in possible]
        assert chisquare([counts[sequence] for sequence in possible], wanted).pvalue > 1e-3
        # Neighbours of one prompt: their first tokens are as a product of two draws.
        first = {token: sum(share for row, share in expected.items() if row[0] == token) for token in LEFT}
        both = [(a, b) for a, b in itertools.product(LEFT, repeat=2) if first[a] * first[b] > 0]
        pairs = Counter(zip(mine[::2, 0].tolist(), mine[1::2, 0].tolist(), strict=True))
        wanted = [first[a] * first[b] * number / 2 for a, b in both]
        assert chisquare([pairs[pair] for pair in both], wanted).pvalue > 1e-3


@torch.no_grad()
def test_log_probabilities_are_those_of_a_plain_forward(model, seldom):
    ends = list(range(0, 256, 5))
    temperature = 1.3
    keys = {"temperature": temperature, "top_k": 5, "eos_token_id": ends, "max_new_tokens": 20}
    result, drawn = compact(model, seed=2, logps_at=temperature, do_sample=True, **keys)
    for row, place in enumerate(COPIES.tolist()):
        completion = cut_at_end(drawn[row].tolist(), set(ends))
        prompt = PROMPTS[place]
        logits = model(torch.tensor([[*prompt, *completion]])).logits[0, len(prompt) - 1 : -1] / temperature
        right = logits.log_softmax(-1).gather(1, torch.tensor(completion)[:, None])[:, 0]
        torch.testing.assert_close(result.logps[row, : len(completion)], right, atol=1e-4, rtol=0)
        assert (result.logps[row, len(completion) :] == 0).all()


# ------------------------------------------------------------------------------------------------- the merged copy

ADAPTERS = {
    "all linear": {**LORA, "target_modules": "all-linear"},
    "dora, all linear": {**LORA, "target_modules": "all-linear", "use_dora": True},
    "bias": {**LORA, "lora_bias": True, "target_modules": ["q_proj", "k_proj"]},
    "head and embeddings": {**LORA, "target_modules": ["q_proj", "embed_tokens"]},
    "saved modules": {**LORA, "modules_to_save": ["norm"]},
}


@torch.no_grad()
@pytest.mark.parametrize("packs", [True, False])
@pytest.mark.parametrize("keys", ADAPTERS.values(), ids=ADAPTERS)
def test_the_copy_gives_the_policy_s_numbers_and_leaves_its_weights_alone(tiny_model, keys, packs, monkeypatch):
    if not packs:
        monkeypatch.setattr("trl_prorl.fast.merged_copy.can_be_packed", lambda layer: False)
    policy = load_with_new_adapter(tiny_model, **keys)
    before = {name: param.clone() for name, param in policy.named_parameters()}
    assert merge_obstacle(policy) is None
    merged = MergedCopy(policy)
    tokens = torch.arange(24).view(2, 12)
    for _ in range(3):
        merged.refresh()
        theirs = policy(tokens).logits.log_softmax(-1)
        mine = merged.model(tokens).logits.log_softmax(-1)
        torch.testing.assert_close(mine, theirs, atol=1e-4, rtol=0)
        assert all(torch.equal(param, before[name]) for name, param in policy.named_parameters())
        assert holds_merged(merged)
        merged.release()
        assert not holds_merged(merged)
        for name, param in policy.named_parameters():
            if "lora_" in name or "modules_to_save" in name:  # an update
                param.add_(torch.randn_like(param) * 0.05)
        policy.get_output_embeddings().weight.mul_(1.1)  # a head that changes
        before = {name: param.clone() for name, param in policy.named_parameters()}
    assert (policy(tokens).logits.log_softmax(-1) - theirs).abs().max() > 1e-2  # the updates were worth something


@pytest.mark.parametrize("packs", [True, False])
def test_layers_with_the_same_input_that_are_computed_at_once_take_each_call_s_own_states(
    tiny_model, packs, monkeypatch
):
    if not packs:
        monkeypatch.setattr("trl_prorl.fast.merged_copy.can_be_packed", lambda layer: False)
    policy = load_with_new_adapter(tiny_model, **{**LORA, "target_modules": "all-linear"})
    merged = MergedCopy(policy)
    merged.refresh()
    part = merged.model.model.layers[0].self_attn.q_proj
    other = merged.model.model.layers[0].self_attn.v_proj
    first, second = torch.randn(2, 1, 3, 32)
    expected = [part(first), other(first)]
    with torch.no_grad():  # in another order, and with other states between
        found = [other(first), part(second), part(first)]
    torch.testing.assert_close([found[2], found[0]], expected)
    assert not torch.allclose(found[1], expected[0])


@needs_states
@torch.no_grad()
def test_the_copy_of_layers_with_a_state_gives_the_policy_s_numbers():
    heads = {"linear_num_key_heads": 2, "linear_num_value_heads": 4}
    sizes = {"linear_key_head_dim": 8, "linear_value_head_dim": 8, "num_hidden_layers": 4}
    model = build("qwen3_5_text", head_dim=8, **heads, **sizes)
    policy = get_peft_model(model, LoraConfig(r=2, target_modules="all-linear", init_lora_weights=False)).eval()
    merged = MergedCopy(policy)
    merged.refresh()
    tokens = torch.arange(24).view(2, 12)
    torch.testing.assert_close(merged.model(tokens).logits, policy(tokens).logits, atol=1e-4, rtol=0)


@torch.no_grad()
def test_a_layer_of_the_copy_has_the_bias_that_a_model_may_read():
    """Mamba adds dt_proj's bias itself, and multiplies by its weight: LoRA there has no gradient and stays 0."""
    targets = ["in_proj", "x_proj", "dt_proj"]
    policy = get_peft_model(build("mamba", "eager", state_size=4), LoraConfig(r=2, target_modules=targets)).eval()
    for name, param in policy.named_parameters():
        if "lora_B" in name and "dt_proj" not in name:
            param.normal_(std=0.1)
    tokens = torch.arange(24).view(2, 12)
    merged = MergedCopy(policy)
    merged.refresh()
    torch.testing.assert_close(merged.model(tokens).logits, policy(tokens).logits, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    "keys, said",
    [
        ({"prompt_lookup_num_tokens": 2}, "assisted"),
        ({"use_cache": False}, "use_cache"),
    ],
)
def test_settings_that_need_the_other_loop(make_trainer, caplog, keys, said):
    with pytest.raises(ValueError, match=said):
        make_trainer(compact_generation="on", generation_kwargs=keys)
    trainer = make_trainer(compact_generation="auto", generation_kwargs=keys)
    assert not trainer.acceleration.generation.on
    assert "without compact_generation:" in caplog.text


def test_what_stays_of_a_model_s_own_settings_may_need_the_other_loop(make_trainer, tiny_model):
    model = AutoModelForCausalLM.from_pretrained(tiny_model)
    model.generation_config.use_cache = False
    with pytest.raises(ValueError, match="use_cache"):
        make_trainer(compact_generation="on", model=model)


# ---------------------------------------------------------------------------------------------------- in a training

A = {"beta": 0.1, "ref_reset_every": 2, "compact_generation": "on"}


def measured(trainer):
    return [row["mean_abs_dlogp_sampler"] for row in read_rows(trainer) if "mean_abs_dlogp_sampler" in row]


def test_bf16_measures_the_copy_and_leaves_it_above_the_bound(make_trainer, resume, largest_difference, monkeypatch):
    keys = {**A, "max_steps": 6, "model_init_kwargs": {"dtype": "bfloat16"}}

    def bf16():
        trainer = make_trainer(**keys, save_strategy="steps", save_steps=1)
        disturb_adapter(trainer.model, 0.1)  # an adapter that matters
        return trainer

    trainer = bf16()
    trainer.train()
    below = measured(trainer)
    assert len(below) == 3
    assert all(0 < value < MERGED_BOUND for value in below)  # once a generation batch
    assert trainer.parts["generation"].merged.on

    # Above the bound the next generation comes from the policy, which rounds too: it may be as far from itself.
    monkeypatch.setattr("trl_prorl.fast.generation.MERGED_BOUND", below[0] / 2)
    for more, leaves in ((100.0, False), (0.01, True)):
        monkeypatch.setattr("trl_prorl.fast.generation.MORE_THAN_POLICY", more)
        trainer = bf16()
        refreshed = record_results(trainer.parts["generation"].copy, "refresh")
        trainer.train()
        found = measured(trainer)
        events = read_events(trainer, "unmerged_generation")
        assert found[0] == below[0]
        assert len(refreshed) == (2 if leaves else 3)  # once before the first batch
        assert len(found) == (2 if leaves else 3)
        assert [event["step_applied"] for event in events] == [3] * leaves
    assert events[0]["value"] == below[0]
    assert events[0]["threshold"] == max(below[0] / 2, 0.01 * found[1])
    for step in (2, 3, 4):  # inside a generation batch, and at its end
        again = resume(trainer, step, **keys)
        assert again.parts["generation"].copy is None
        assert largest_difference(trainer, again) == 0.0


def test_a_batch_of_two_steps_does_not_compare_the_copy_with_itself(make_trainer, monkeypatch):
    keys = {**A, "max_steps": 6, "model_init_kwargs": {"dtype": "bfloat16"}, "num_iterations": 1}
    keys |= {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 1, "steps_per_generation": 2}
    monkeypatch.setattr("trl_prorl.fast.generation.MERGED_BOUND", 1e-9)
    monkeypatch.setattr("trl_prorl.fast.generation.MORE_THAN_POLICY", 1e-3)
    trainer = make_trainer(**keys)
    disturb_adapter(trainer.model, 0.1)
    trainer.train()
    (event,) = read_events(trainer, "unmerged_generation")
    assert event["step_applied"] == 3  # the first step of the policy's own batch


def test_a_policy_that_is_scored_in_bf16_is_measured(run):
    found = measured(run(**A, bf16=True))  # weights in fp32
    assert len(found) == 2
    assert all(0 < value < MERGED_BOUND for value in found)


def test_log_probabilities_of_another_sampler_say_nothing_about_the_copy(run):
    def rollout(prompts, trainer):
        ids = [[5, 6, 7]] * len(prompts)
        return {"prompt_ids": ids, "completion_ids": ids, "logprobs": [[-50.0] * 3] * len(prompts)}

    keys = {"trainer_kwargs": {"rollout_func": rollout}, "model_init_kwargs": {"dtype": "bfloat16"}}
    trainer = run(**A, **keys)
    assert trainer.parts["generation"].merged.on
    assert not measured(trainer)
    batch = {"sampling_per_token_logps": torch.zeros(4, 5)}
    assert trainer.compact.take_logps(batch) is None
    assert batch  # TRL's off-policy mask reads it


def not_the_policy_s(trainer):
    """Train with greedy rollouts, and count for each generation the tokens that a plain forward would not choose."""
    counts = []
    sampling = trainer._generate_single_turn
    policy = trainer.accelerator.unwrap_model(trainer.model)

    def counted(prompts, *args, **kwargs):
        completions, logps = sampling(prompts, *args, **kwargs)
        wrong = 0
        with torch.no_grad(), evaluation_mode(policy):
            for prompt, completion in zip(prompts, completions, strict=True):
                logits = policy(torch.tensor([[*prompt, *completion]])).logits[0, len(prompt) - 1 : -1]
                wrong += int((logits.argmax(-1) != torch.tensor(completion)).sum())
        counts.append(wrong)
        return completions, logps

    trainer._generate_single_turn = counted
    trainer.generation_config.do_sample = False
    trainer.train()
    return counts


@pytest.mark.parametrize("lora", [True, False])
def test_checkpointing_rests_while_rollouts_are_sampled_and_returns_as_it_was(make_trainer, tiny_model, lora):
    """Of a model that is given with it, too: layers with checkpointing drop the cache in training mode."""
    model = AutoModelForCausalLM.from_pretrained(tiny_model)
    how = {"use_reentrant": True}
    model.gradient_checkpointing_enable()
    keys = {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": how, "max_completion_length": 12}
    trainer = make_trainer(model=model, lora=lora, compact_generation="on", **keys)
    sample = trainer.compact.sample
    found = []

    def seen(model, *args, **more):
        found.append(model.is_gradient_checkpointing)
        return sample(model, *args, **more)

    trainer.compact.sample = seen
    assert not_the_policy_s(trainer) == [0, 0]
    assert found == [False, False, False]  # before the first batch, too
    layers = [m for m in trainer.model.modules() if hasattr(m, "_gradient_checkpointing_func")]
    assert layers
    assert all(layer._gradient_checkpointing_func.keywords == how for layer in layers)
    assert trainer.accelerator.unwrap_model(trainer.model).is_gradient_checkpointing


def test_embeddings_with_an_adapter_and_a_head_in_fp32(make_trainer, tiny_model):
    """The hook that casts the embeddings' output hangs on the adapter's layer, which the copy has not got."""
    lora = LoraConfig(**{**LORA, "target_modules": ["q_proj", "embed_tokens"]})
    keys = {"compact_generation": "on", "cast_lm_head_to_fp32": True, "trainer_kwargs": {"peft_config": lora}}
    trainer = make_trainer(model=AutoModelForCausalLM.from_pretrained(tiny_model).bfloat16(), **keys)
    trainer.train()
    assert trainer.parts["generation"].merged.on
    rows = read_rows(trainer)
    assert 0.0 < rows[0]["mean_abs_dlogp_sampler"] < 0.05


@pytest.mark.parametrize("size", [2, 7, BLOCK - 1, BLOCK, BLOCK + 1, 5 * BLOCK + 3])
def test_frequencies_are_the_probabilities(size):
    torch.manual_seed(size)
    weights = torch.rand(size) ** 3
    weights[torch.rand(size) < 0.3] = 0.0
    weights[-1] = 0.2
    probabilities = weights / weights.sum()
    number = 50_000
    numbers = torch.rand(number, 1, dtype=torch.float64)
    tokens, has_distribution = draw(probabilities.expand(number, size), numbers)
    counts = torch.bincount(tokens, minlength=size)
    assert has_distribution.all()
    assert counts[probabilities == 0].sum() == 0
    drawn = probabilities > 0
    expected = probabilities[drawn].double() / probabilities[drawn].double().sum() * number
    assert chisquare(counts[drawn].double(), expected).pvalue > 1e-3


@pytest.mark.parametrize("number", [0.0, 0.5, 1 - 2**-53])
def test_the_ends_of_the_interval(number):
    """No number draws a token of probability 0, where zeros come first, last, and fill whole blocks."""
    probabilities = torch.zeros(3, 4 * BLOCK)
    probabilities[0, BLOCK + 5] = 1.0
    probabilities[1, [BLOCK + 5, 2 * BLOCK]] = 0.5
    probabilities[2, [1, 4 * BLOCK - 2]] = torch.tensor([1e-30, 1.0])
    numbers = torch.full((3, 1), number, dtype=torch.float64)
    first, second, third = draw(probabilities, numbers)[0].tolist()
    assert first == BLOCK + 5
    assert second == (BLOCK + 5 if number < 0.5 else 2 * BLOCK)
    assert third == (1 if number == 0.0 else 4 * BLOCK - 2)


def test_a_rare_token_is_as_rare_as_it_should_be():
    """Of probability 3e-8 behind a thousand others: cumulative sums in fp32 are multiples of 6e-8 there."""
    rare = 3e-8
    probabilities = torch.full((2, 1001), (1 - rare) / 1000)
    probabilities[:, -1] = rare
    numbers = torch.tensor([[1 - 0.9 * rare], [1 - 1.1 * rare]], dtype=torch.float64)
    total = probabilities[0].double().sum()
    assert abs(total - 1) < 1e-7
    assert draw(probabilities / total, numbers)[0].tolist() == [1000, 999]


@pytest.mark.parametrize("value", [torch.nan, torch.inf, 0.0])
def test_what_has_no_distribution_is_not_drawn(value):
    probabilities = torch.ones(3, 300)
    probabilities[1] = value
    tokens, has_distribution = draw(probabilities, torch.rand(3, 1, dtype=torch.float64))
    assert has_distribution.tolist() == [True, False, True]
    assert ((tokens >= 0) & (tokens < 300)).all()  # what is read of it lies within every table
