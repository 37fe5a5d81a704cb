"""Compact sampling: against `generate`, against enumeration, in a training, and where something stands against it."""

import copy
import itertools
from collections import Counter
from pathlib import Path

import pytest
import torch
from peft import IA3Config, LoraConfig, get_peft_model
from peft.tuners.lora import Linear as LoraLinear
from run_record import read_events, read_rows
from scipy.stats import chisquare
from tiny_run import LORA, constant, disturb_adapter, load_with_new_adapter, record_results
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig
from transformers.cache_utils import DynamicLayer

from trl_prorl.eval.run_folder.reading import read_env
from trl_prorl.launch import acceleration
from trl_prorl.rollout.cache_rows import RoomyLayer, Selection
from trl_prorl.rollout.compact import compact_sample
from trl_prorl.rollout.compact_probe import probe
from trl_prorl.rollout.draw import BLOCK, _running_sums, draw
from trl_prorl.rollout.generation import MERGED_BOUND
from trl_prorl.rollout.merged_copy import MergedCopy, PackedLinear, can_be_packed, packs_bf16, why_not_merged
from trl_prorl.rollout.padding_mask import PaddingMask
from trl_prorl.rollout.prompts import cut_at_end, find_distinct, pad_left
from trl_prorl.rollout.thinking import make_interrupted_rollout
from trl_prorl.scoring.first_layers import try_first_layers
from trl_prorl.scoring.head import cast_head_to_fp32
from trl_prorl.scoring.packing_probe import evaluation_mode


PROMPTS = [[5, 6, 7], [9, 8, 7, 6, 5, 4], [11]]
COPIES = torch.tensor([0, 0, 0, 1, 1, 2, 2, 2])
select_of = Selection.of


@pytest.fixture(scope="module")
def model(tiny_model):
    return AutoModelForCausalLM.from_pretrained(tiny_model).eval()


def config(**keys):
    plain = {"max_new_tokens": 12, "pad_token_id": 0, "eos_token_id": None, "disable_compile": True}
    return GenerationConfig(**plain | keys)


def compact(model, prompts=PROMPTS, copies=COPIES, seed=0, logps_at=None, **keys):
    """Compact sampling: its result, and its completions alone."""
    ids, mask = pad_left(prompts, 0)
    given = {} if logps_at is None else {"logps_at": logps_at}
    given |= {"generation_config": config(**keys), "custom_generate": compact_sample, "copies": copies}
    torch.manual_seed(seed)
    result = model.generate(input_ids=ids, attention_mask=mask, **given)
    return result, result.ids[:, ids.shape[1] :]


@pytest.mark.parametrize(
    "keys",
    [
        {},
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
def test_greedy_tokens_are_those_of_generate(model, keys):
    ids, mask = pad_left(PROMPTS, 0)
    settings = config(do_sample=False, **keys)
    theirs = model.generate(input_ids=ids[COPIES], attention_mask=mask[COPIES], generation_config=settings)
    assert torch.equal(theirs, compact(model, do_sample=False, **keys)[0].ids)


@pytest.mark.parametrize(
    "keys", [{}, {"do_sample": True, "temperature": 0.7}, {"do_sample": True, "top_k": 9}], ids=str
)
def test_looking_seldom_at_the_device_changes_no_completion(model, keys, monkeypatch):
    """Rows that have ended go on as padding until the next look: nothing of it is left in the result."""
    keys = {"eos_token_id": list(range(0, 256, 16)), "max_new_tokens": 40, "do_sample": False, **keys}
    # One number for a row and a token, whichever rows are computed beside it.
    monkeypatch.setattr(torch, "rand", lambda rows, one, dtype, device: torch.full((rows, one), 0.4, dtype=dtype))
    expected, _ = compact(model, logps_at=0.7, **keys)
    looks = []
    monkeypatch.setattr("trl_prorl.rollout.compact.tokens_between_checks", lambda device: 16)
    monkeypatch.setattr(Selection, "of", lambda alive, device: looks.append(alive) or select_of(alive, device))
    drawn, _ = compact(model, logps_at=0.7, **keys)
    assert torch.equal(drawn.ids, expected.ids)
    torch.testing.assert_close(drawn.logps, expected.logps, atol=1e-5, rtol=0)
    assert len(looks) <= 2


class Looks(TorchDispatchMode):
    """Counts how often the program asks for a value of a tensor, for which a device is waited for."""

    ASKING = ("aten::_local_scalar_dense", "aten::nonzero", "aten::equal", "aten::masked_select")

    def __init__(self, monkeypatch):
        super().__init__()
        self.number = 0
        tolist = torch.Tensor.tolist
        monkeypatch.setattr(torch.Tensor, "tolist", lambda tensor: self.look() or tolist(tensor))

    def look(self):
        self.number += 1

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.name() in self.ASKING:
            self.look()
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("prompts", [PROMPTS, [[5, 6, 7], [9, 8, 7], [1, 2, 3]]], ids=["padded", "of one length"])
def test_a_device_is_waited_for_once_in_sixteen_tokens(model, prompts, temperature, monkeypatch):
    monkeypatch.setattr("trl_prorl.rollout.compact.tokens_between_checks", lambda device: 16)
    looks = []
    for tokens in (16, 80):
        with monkeypatch.context() as patch, Looks(patch) as seen:
            keys = {"do_sample": True, "temperature": temperature, "max_new_tokens": tokens}
            compact(model, prompts, logps_at=temperature, **keys)
        looks.append(seen.number)
    assert looks[1] - looks[0] == 4


def masks_of_tokens(model):
    """The masks that a model is given for one token after another, where a prompt has padding."""
    masks = []
    look = lambda module, args, kwargs: masks.append(kwargs["attention_mask"])  # noqa: E731
    hook = model.register_forward_pre_hook(look, with_kwargs=True)
    compact(model, seed=3, do_sample=True, eos_token_id=list(range(0, 256, 16)), max_new_tokens=30)
    hook.remove()
    return [mask for mask in masks[1:] if mask is not None]


def test_torch_s_kernel_for_gpus_takes_the_mask_as_it_is(model):
    """It copies a mask whose rows do not begin at every eighth number, in every layer and for every token."""
    masks = masks_of_tokens(model)
    assert len({len(mask) for mask in masks}) > 2  # the situation: rows end meanwhile
    assert {mask.shape[-1] % 8 for mask in masks} == set(range(8))
    for mask in masks:
        *strides, last = mask.stride()
        assert last == 1
        assert all(stride % 8 == 0 for stride in strides)


def test_the_mask_has_the_dtype_of_the_queries_whatever_that_of_the_logits(model):
    """torch's kernel for GPUs refuses another: "invalid dtype for bias - should match query's dtype"."""
    narrow = copy.deepcopy(model).bfloat16()
    cast_head_to_fp32(narrow)
    assert narrow(torch.tensor([[5, 6]])).logits.dtype == torch.float32
    assert {mask.dtype for mask in masks_of_tokens(narrow)} == {torch.bfloat16}


def test_the_first_layers_are_tried_with_the_mask_of_all(model, monkeypatch):
    """The cache of a model that is tried by its first layers has layers for all, of which the others hold nothing."""
    settings = model.config.to_dict() | {"num_hidden_layers": 4, "layer_types": None}
    deep = AutoModelForCausalLM.from_config(type(model.config)(**settings))
    made = []
    make = PaddingMask.__init__

    def counted(self, *args):
        made.append(len(deep.model.layers))
        make(self, *args)

    monkeypatch.setattr(PaddingMask, "__init__", counted)
    assert try_first_layers(deep.eval(), lambda: probe(deep, 256)) is None
    assert made == [2]


def test_the_cache_is_allocated_once(model, monkeypatch):
    rooms = []
    show = RoomyLayer._show

    def look(self, length):
        show(self, length)
        rooms.append((length, *(room.untyped_storage().data_ptr() for room in self._room)))

    monkeypatch.setattr(RoomyLayer, "_show", look)
    compact(model, do_sample=True, eos_token_id=[3, 4], max_new_tokens=150)
    lengths = {length for length, _, _ in rooms}
    assert max(lengths) > 64 + min(lengths)
    assert len({room[1:] for room in rooms}) == model.config.num_hidden_layers


def test_rows_that_end_are_no_longer_computed(model):
    """16 rows end one token after another; what is computed is counted at the model."""
    rows = []
    ends = list(range(0, 256, 16))
    seen = lambda module, args, kwargs: rows.append(tuple(kwargs["input_ids"].shape))  # noqa: E731
    hook = model.register_forward_pre_hook(seen, with_kwargs=True)
    _, drawn = compact(model, seed=3, do_sample=True, eos_token_id=ends, max_new_tokens=40)
    hook.remove()
    lengths = sorted(len(cut_at_end(row, set(ends))) for row in drawn.tolist())
    assert rows[0] == (3, 6)
    assert all(shape[1] == 1 for shape in rows[1:])  # a prompt once, then a token each
    still = [sum(length > step for length in lengths) for step in range(1, len(rows))]
    assert [shape[0] for shape in rows[1:]] == still
    assert len(set(still)) > 3
    assert (drawn[:, -1] == 0).any() or len(set(lengths)) == 1


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
def test_log_probabilities_are_those_of_a_plain_forward(model):
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


def test_equal_prompts_are_found():
    assert find_distinct([[1, 2], [3], [1, 2], [3, 4], [3]]) == ([[1, 2], [3], [3, 4]], [0, 1, 0, 2, 1])
    ids, mask = pad_left([[1, 2], [3]], 9, 4)
    assert ids.tolist() == [[9, 9, 1, 2], [9, 9, 9, 3]]
    assert mask.tolist() == [[0, 0, 1, 1], [0, 0, 0, 1]]


# ------------------------------------------------------------------------------------------------- the merged copy

ADAPTERS = {
    "plain": LORA,
    "rslora": {**LORA, "use_rslora": True},
    "dora": {**LORA, "use_dora": True},
    "bias": {**LORA, "lora_bias": True, "target_modules": ["q_proj", "k_proj"]},
    "head and embeddings": {**LORA, "target_modules": ["q_proj", "embed_tokens"]},
    "saved modules": {**LORA, "modules_to_save": ["norm"]},
    "ranks by layer": {**LORA, "rank_pattern": {"layers.0.*": 2}},
}


@torch.no_grad()
@pytest.mark.parametrize("keys", ADAPTERS.values(), ids=ADAPTERS)
def test_the_copy_gives_the_policy_s_numbers_and_leaves_its_weights_alone(tiny_model, keys):
    policy = load_with_new_adapter(tiny_model, **keys)
    before = {name: param.clone() for name, param in policy.named_parameters()}
    assert why_not_merged(policy) is None
    merged = MergedCopy(policy)
    tokens = torch.arange(24).view(2, 12)
    for _ in range(3):
        merged.refresh()
        theirs = policy(tokens).logits.log_softmax(-1)
        mine = merged.model(tokens).logits.log_softmax(-1)
        torch.testing.assert_close(mine, theirs, atol=1e-4, rtol=0)
        assert all(torch.equal(param, before[name]) for name, param in policy.named_parameters())
        for name, param in policy.named_parameters():
            if "lora_" in name or "modules_to_save" in name:  # an update
                param.add_(torch.randn_like(param) * 0.05)
        policy.get_output_embeddings().weight.mul_(1.1)  # a head that changes
        before = {name: param.clone() for name, param in policy.named_parameters()}
    assert (policy(tokens).logits.log_softmax(-1) - theirs).abs().max() > 1e-2  # the updates were worth something


def test_the_copy_shares_what_lora_does_not_touch(tiny_model):
    policy = load_with_new_adapter(tiny_model, **LORA)
    merged = MergedCopy(policy)
    merged.refresh(), merged.refresh()
    shared = {id(param) for param in policy.parameters()}
    assert all(id(param) in shared for param in merged.model.parameters())
    packed = [layer for layer in merged.model.modules() if isinstance(layer, PackedLinear)]
    own = {param.data_ptr() for param in policy.parameters()}  # the merged weights are held once, packed
    assert all(layer.weight.data_ptr() in own for layer in packed)
    targets = [m for name, m in policy.named_modules() if name.endswith((".q_proj", ".v_proj", ".down_proj"))]
    weights = [param for module in targets for param in module.base_layer.parameters()]
    assert len(packed) == len(targets) + 1
    head = policy.get_output_embeddings().weight  # held once more, in the order in which a CPU reads it
    assert merged.bytes == sum(param.numel() * 4 for param in [*weights, head])
    assert not any("lora" in name for name, _ in merged.model.named_parameters())


def holds_merged_weights(merged):
    """Whether any adapted layer of the copy has weights other than the policy's own."""
    for layer in merged._layers:
        if layer._packed is not None and layer._packed._packed is not None:
            return True
        originals = layer._originals.items()
        if any(getattr(layer._weights, key).data_ptr() != original.data_ptr() for key, original in originals):
            return True
    return False


@torch.no_grad()
@pytest.mark.parametrize("can_pack", [True, False], ids=["packed", "not packed"])
def test_a_released_copy_holds_no_merged_weights_and_merges_them_again(tiny_model, can_pack, monkeypatch):
    if not can_pack:
        monkeypatch.setattr("trl_prorl.rollout.merged_copy.can_be_packed", lambda layer: False)
    policy = load_with_new_adapter(tiny_model, **LORA)
    merged = MergedCopy(policy)
    tokens = torch.arange(24).view(2, 12)
    assert not holds_merged_weights(merged)
    merged.refresh()
    first = merged.model(tokens).logits
    assert holds_merged_weights(merged)
    merged.release()
    assert not holds_merged_weights(merged)
    merged.refresh()
    assert torch.equal(merged.model(tokens).logits, first)


def test_the_merged_weights_are_gone_when_the_update_begins(make_trainer):
    trainer = make_trainer(compact_generation="on")
    held_while = {"sampling": [], "updating": []}
    copy = trainer.compact.copy
    forward = copy.model.forward

    def forward_of_copy(*args, **kwargs):
        held_while["sampling"].append(holds_merged_weights(copy))
        return forward(*args, **kwargs)

    def compute_loss(*args, **kwargs):
        held_while["updating"].append(holds_merged_weights(copy))
        return type(trainer).compute_loss(trainer, *args, **kwargs)

    copy.model.forward = forward_of_copy
    trainer.compute_loss = compute_loss
    trainer.train()
    assert held_while["sampling"]
    assert all(held_while["sampling"])
    assert held_while["updating"]
    assert not any(held_while["updating"])


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dtype, packed", [("float32", True), ("bfloat16", packs_bf16()), ("float64", False)])
def test_which_layers_are_packed_and_that_they_give_their_products(dtype, bias, packed):
    layer = torch.nn.Linear(64, 300, bias=bias, dtype=getattr(torch, dtype))
    assert can_be_packed(layer) is packed
    if packed:
        states = torch.randn(3, 2, 64, dtype=layer.weight.dtype)
        ours = PackedLinear(layer)
        ours.pack()
        unit = torch.finfo(layer.weight.dtype).eps
        torch.testing.assert_close(ours(states), layer(states), atol=4 * unit, rtol=4 * unit)
    hook = layer.register_forward_hook(lambda *given: None)
    assert not can_be_packed(layer)
    hook.remove()
    layer.forward = layer.forward
    assert not can_be_packed(layer)
    assert not can_be_packed(None)
    assert not can_be_packed(torch.nn.Sequential(layer))


def test_what_cannot_be_merged_is_said(tiny_model):
    plain = AutoModelForCausalLM.from_pretrained(tiny_model)
    assert why_not_merged(plain) == "the model has no adapter"
    quantised = load_with_new_adapter(tiny_model, **LORA)
    layer = quantised.get_base_model().model.layers[1].self_attn.q_proj.base_layer
    layer.weight = torch.nn.Parameter(layer.weight.to(torch.uint8), requires_grad=False)
    assert why_not_merged(quantised) == "model.layers.1.self_attn.q_proj is quantised"
    other = get_peft_model(plain, IA3Config(target_modules=["k_proj", "down_proj"], feedforward_modules=["down_proj"]))
    assert why_not_merged(other) == "the adapter is not a plain LoRA (IA3)"


# ------------------------------------------------------------------------------------------------------- the probe


def test_the_probe_accepts_what_is_right_and_refuses_what_is_not(tiny_model, monkeypatch):
    model = AutoModelForCausalLM.from_pretrained(tiny_model)
    size = model.config.vocab_size
    with_adapter = load_with_new_adapter(tiny_model, **LORA)
    state = torch.get_rng_state()
    assert probe(model, size) is None
    assert probe(with_adapter, size) is None
    assert torch.equal(state, torch.get_rng_state())
    assert model.training is False
    close_up = RoomyLayer.close_up
    with monkeypatch.context() as patch:  # rows mixed up when some are dropped
        mixed_up = lambda self, kept: close_up(self, kept._replace(movers=kept.movers - 1))  # noqa: E731
        patch.setattr(RoomyLayer, "close_up", mixed_up)
        assert probe(model, size).startswith("greedy tokens of Qwen2ForCausalLM differ from those of generate")
    with monkeypatch.context() as patch:
        patch.delattr(DynamicLayer, "batch_select_indices")
        assert "whose rows cannot be selected" in probe(model, size)
    with monkeypatch.context() as patch:
        patch.setattr(model, "prepare_inputs_for_generation", lambda *args, **kwargs: 1 / 0)
        assert "fails with it (ZeroDivisionError" in probe(model, size)


@pytest.mark.parametrize("kind", ["gemma2", "mistral", "gpt2", "mamba"])
def test_other_architectures_are_asked_for_numbers(kind):
    keys = {
        "vocab_size": 200,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "intermediate_size": 48,
        "sliding_window": 4,
        "head_dim": 16,
    }
    keys = {"gpt2": {"vocab_size": 200, "n_embd": 32, "n_layer": 2, "n_head": 2}}.get(kind, keys)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, pad_token_id=0, **keys))
    with torch.no_grad():
        for param in model.parameters():
            param.mul_(4.0)
    reason = probe(model, 200)
    assert (reason is None) == (kind in ("mistral", "gpt2", "gemma2")), reason


SETTINGS = [
    ({"num_beams": 2, "do_sample": False}, "the settings of the generation ask for beam s"),
    ({"use_cache": False}, "use_cache=False needs"),
    ({"guidance_scale": 1.5}, "guidance_scale=1.5 needs"),
    ({"encoder_no_repeat_ngram_size": 2}, "encoder_no_repeat_ngram_size=2 needs"),
    ({"cache_implementation": "static"}, "cache_implementation='static' needs transformers' own loop"),
]


@pytest.mark.parametrize(
    "keys, line, of_the_model",
    [
        *[(keys, line, False) for keys, line in SETTINGS],
        ({"use_cache": False}, "use_cache=False needs", True),
    ],
    ids=str,
)
def test_settings_that_need_the_other_loop(make_trainer, tiny_model, caplog, keys, line, of_the_model):
    """Those of the run; of the model's own generation config only what stays of it."""
    model = AutoModelForCausalLM.from_pretrained(tiny_model)
    if of_the_model:
        vars(model.generation_config).update(keys)
        asked = {}
    else:
        asked = keys if "cache_implementation" in keys else {"generation_kwargs": keys}
    with pytest.raises(ValueError, match=line):
        make_trainer(model=model, compact_generation="on", **asked)
    trainer = make_trainer(model=model, compact_generation="auto", **asked)
    assert str(trainer.acceleration.generation).startswith(f"off: {line}")
    assert f"computed as without it: compact_generation: {line}" in caplog.text


# ---------------------------------------------------------------------------------------------------- in a training

A = {"beta": 0.1, "ref_reset_every": 2, "compact_generation": "on"}


@pytest.mark.parametrize("lora", [True, False])
def test_a_training_with_it(make_trainer, lora, monkeypatch):
    trainer = make_trainer(lora=lora, **A)
    prefilled = []
    calls = []
    layer = LoraLinear.forward
    policy = trainer.accelerator.unwrap_model(trainer.model)
    sampling = trainer._generate_single_turn

    def seen(module, args, kwargs):
        cache = kwargs.get("cache", kwargs.get("past_key_values"))  # its name from transformers 5.24 on, and before
        prompts = kwargs["input_ids"].shape[1] > 1 and cache is not None
        if prompts and not torch.is_grad_enabled():
            prefilled.append(len(kwargs["input_ids"]))

    def single_turn(*args, **kwargs):
        before = len(calls)
        result = sampling(*args, **kwargs)
        assert len(calls) == before  # from weights in which LoRA is merged
        return result

    sampled = trainer.parts["generation"].copy.model if lora else policy
    sampled.register_forward_pre_hook(seen, with_kwargs=True)
    monkeypatch.setattr(LoraLinear, "forward", lambda *args, **kw: calls.append(1) or layer(*args, **kw))
    monkeypatch.setattr(trainer, "_generate_single_turn", single_turn)
    trainer.train()
    assert (len(calls) > 0) == lora
    assert prefilled == [2, 2]  # eight completions of two prompts, twice
    env = read_env(Path(trainer.args.output_dir))["execution"]
    assert env["compact_generation"] == "on"
    assert (env["merged_copy_bytes"] > 0) == lora
    assert env["merged_copy"] == ("on" if lora else "off: the model has no adapter")
    rows = read_rows(trainer)
    assert len(rows) == 4
    assert "mean_abs_dlogp_sampler" not in rows[0]  # fp32


def measured(trainer):
    return [row["mean_abs_dlogp_sampler"] for row in read_rows(trainer) if "mean_abs_dlogp_sampler" in row]


def test_bf16_measures_the_copy_and_leaves_it_above_the_bound(make_trainer, resume, largest_difference, monkeypatch):
    keys = {**A, "max_steps": 6, "model_init_kwargs": {"dtype": "bfloat16"}}

    def bf16():
        trainer = make_trainer(**keys, save_strategy="steps", save_steps=1)
        with torch.no_grad():  # an adapter that matters
            for name, param in trainer.model.named_parameters():
                if "lora_B" in name and ".default." in name:
                    param.normal_(std=0.1)
        return trainer

    trainer = bf16()
    trainer.train()
    below = measured(trainer)
    assert len(below) == 3
    assert all(0 < value < MERGED_BOUND for value in below)  # once a generation batch
    assert trainer.parts["generation"].merged.on

    # Above the bound the next generation comes from the policy, which rounds too: it may be as far from itself.
    monkeypatch.setattr("trl_prorl.rollout.generation.MERGED_BOUND", below[0] / 2)
    for more, leaves in ((100.0, False), (0.01, True)):
        monkeypatch.setattr("trl_prorl.rollout.generation.MORE_THAN_POLICY", more)
        trainer = bf16()
        refreshed = record_results(trainer.parts["generation"].copy, "refresh")
        trainer.train()
        found = measured(trainer)
        events = read_events(trainer, "unmerged_generation")
        assert found[0] == below[0]
        assert len(refreshed) == (1 if leaves else 2)
        assert len(found) == (2 if leaves else 3)
        assert [event["step_applied"] for event in events] == [3] * leaves
        for step in (2, 3, 4):  # inside a generation batch, and at its end
            again = resume(trainer, step, **keys)
            assert (again.parts["generation"].copy is None) == leaves
            assert largest_difference(trainer, again) == 0.0
    assert events[0]["value"] == below[0]
    assert events[0]["threshold"] == max(below[0] / 2, 0.01 * found[1])
    assert trainer.parts["generation"].merged.reason.startswith("the copy was")


def test_a_policy_that_is_scored_in_bf16_is_measured(run):
    found = measured(run(**A, bf16=True))  # weights in fp32
    assert len(found) == 2
    assert all(0 < value < MERGED_BOUND for value in found)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_log_probabilities_of_another_sampler_say_nothing_about_the_copy(run, dtype):
    def rollout(prompts, trainer):
        ids = [[5, 6, 7]] * len(prompts)
        return {"prompt_ids": ids, "completion_ids": ids, "logprobs": [[-50.0] * 3] * len(prompts)}

    trainer = run(trainer_kwargs={"rollout_func": rollout}, **A, max_steps=4, model_init_kwargs={"dtype": dtype})
    assert trainer.parts["generation"].merged.on
    assert len(read_rows(trainer)) == 4
    assert not measured(trainer)


def test_with_what_else_samples(run):
    assert run(**A, dynamic_sampling_rounds=2, reward=constant(0.0)).state.global_step == 4
    budget = {"rollout_func": make_interrupted_rollout(3, 2, "so: ")}
    assert run(**A, trainer_kwargs=budget, max_completion_length=20).state.global_step == 4


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
    trainer.compact.sample = lambda model, *a: found.append(model.is_gradient_checkpointing) or sample(model, *a)
    assert not_the_policy_s(trainer) == [0, 0]
    assert found == [False, False]
    layers = [m for m in trainer.model.modules() if hasattr(m, "_gradient_checkpointing_func")]
    assert layers
    assert all(layer._gradient_checkpointing_func.keywords == how for layer in layers)
    assert trainer.accelerator.unwrap_model(trainer.model).is_gradient_checkpointing


@pytest.mark.parametrize("merged, adapters", [("on", ["mine"]), ("off: not one adapter is active, but 2", ["a", "b"])])
def test_an_adapter_of_another_name_and_two_at_once(make_trainer, tiny_model, merged, adapters):
    model = AutoModelForCausalLM.from_pretrained(tiny_model)
    policy = get_peft_model(model, LoraConfig(**LORA), adapter_name=adapters[0])
    for name in adapters[1:]:
        policy.add_adapter(name, LoraConfig(**LORA))
    policy.base_model.set_adapter(adapters)
    given = {"model": disturb_adapter(policy, 0.05), "trainer_kwargs": {"peft_config": None}}
    trainer = make_trainer(compact_generation="on", **given)
    assert str(trainer.parts["generation"].merged) == merged
    assert not_the_policy_s(trainer) == [0, 0]


def test_embeddings_with_an_adapter_and_a_head_in_fp32(make_trainer, tiny_model):
    """The hook that casts the embeddings' output hangs on the adapter's layer, which the copy has not got."""
    lora = LoraConfig(**{**LORA, "target_modules": ["q_proj", "embed_tokens"]})
    keys = {"compact_generation": "on", "cast_lm_head_to_fp32": True, "trainer_kwargs": {"peft_config": lora}}
    trainer = make_trainer(model=AutoModelForCausalLM.from_pretrained(tiny_model).bfloat16(), **keys)
    trainer.train()
    assert trainer.parts["generation"].merged.on
    rows = read_rows(trainer)
    assert 0.0 < rows[0]["mean_abs_dlogp_sampler"] < 0.05


def test_a_copy_with_other_numbers_is_not_sampled(tiny_model):
    """A new adapter changes nothing, so that a copy without it would look right at first."""
    policy = get_peft_model(AutoModelForCausalLM.from_pretrained(tiny_model), LoraConfig(**LORA))
    assert why_not_merged(policy) is None
    before = {name: param.clone() for name, param in policy.named_parameters()}
    state = torch.get_rng_state()
    layer = policy.get_base_model().model.layers[1].self_attn.v_proj
    layer.merge = lambda *args, **kwargs: None
    assert why_not_merged(policy).startswith("merged, its log-probabilities differ by ")
    assert all(torch.equal(param, before[name]) for name, param in policy.named_parameters())
    assert torch.equal(state, torch.get_rng_state())
    del layer.merge
    # A closure computes with the policy's layers, wherever it is copied to.
    around = policy.get_base_model().model.layers[1]
    for replaced, name in ((layer.base_layer, "model.layers.1.self_attn.v_proj"), (around, "model.layers.1")):
        replaced.forward = replaced.forward
        assert why_not_merged(policy).endswith(f"merged (ValueError: the forward of {name} is replaced)")
        del replaced.forward
    around.forward = around.forward
    with pytest.raises(ValueError, match="is replaced"):
        MergedCopy(policy)


def test_a_new_training_forgets_that_the_last_went_on_unmerged(make_trainer):
    trainer = make_trainer(compact_generation="on", max_steps=2)
    trainer.train()
    generation = trainer.parts["generation"]
    assert generation.row(1, {"mean_abs_dlogp_sampler": 1.0}) is None  # the policy itself comes first
    assert generation.row(2, {"mean_abs_dlogp_sampler": 0.5})["reason"] == "copy_off_policy"
    assert generation.copy is None
    assert str(generation.merged).startswith("off: the copy was 1 nats")
    generation.load_state_dict(generation.state_dict(), {})
    assert generation.copy is None
    trainer.train()
    assert generation.copy is not None
    assert generation.merged.on


def test_a_run_with_auto_goes_on_where_it_is_possible(make_trainer, tmp_path, monkeypatch):
    """The run fell back where it began, and the machine that resumes it need not."""
    keys = {"compact_generation": "auto", "save_strategy": "steps", "save_steps": 2, "output_dir": str(tmp_path / "o")}
    with monkeypatch.context() as patch:
        patch.setattr(acceleration, "probe_generation", lambda *args: "it has no luck.")
        first = make_trainer(max_steps=2, **keys)
        first.train()
    assert str(first.acceleration.generation) == "off: it has no luck."
    second = make_trainer(max_steps=4, **keys)
    second.train(resume_from_checkpoint=str(tmp_path / "o" / "checkpoint-2"))
    assert str(second.acceleration.generation) == "on"
    assert second.state.global_step == 4


@pytest.mark.parametrize("kind", ["dynamic", "longrope"])
def test_positions_that_depend_on_the_longest_row_are_refused(kind):
    """When that row ends and is dropped, the others' frequencies would change under them."""
    factors = {"short_factor": [1.0] * 4, "long_factor": [3.0] * 4} if kind == "longrope" else {}
    rope = {"rope_type": kind, "rope_theta": 1e4, "factor": 2.0, "original_max_position_embeddings": 16, **factors}
    keys = {
        "vocab_size": 200,
        "hidden_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "head_dim": 8,
        "intermediate_size": 48,
        "max_position_embeddings": 16,
        "pad_token_id": 0,
        "rope_parameters": rope,
    }
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model("llama", **keys))
    assert probe(model, 200) == f"rope_type='{kind}': its frequencies depend on the longest row, which may be dropped."


@pytest.mark.parametrize("size", [2, 7, BLOCK - 1, BLOCK, BLOCK + 1, 5 * BLOCK + 3])
def test_frequencies_are_the_probabilities(size):
    torch.manual_seed(size)
    weights = torch.rand(size) ** 3
    weights[torch.rand(size) < 0.3] = 0.0
    weights[-1] = 0.2
    probabilities = weights / weights.sum()
    number = 200_000
    tokens, has_distribution = draw(probabilities.expand(number, size))
    counts = torch.bincount(tokens, minlength=size)
    assert has_distribution.all()
    assert counts[probabilities == 0].sum() == 0
    drawn = probabilities > 0
    expected = probabilities[drawn].double() / probabilities[drawn].double().sum() * number
    assert chisquare(counts[drawn].double(), expected).pvalue > 1e-3


@pytest.mark.parametrize("number", [0.0, 0.5, 1 - 2**-53])
def test_the_ends_of_the_interval(number, monkeypatch):
    """No number draws a token of probability 0, where zeros come first, last, and fill whole blocks."""
    probabilities = torch.zeros(3, 4 * BLOCK)
    probabilities[0, BLOCK + 5] = 1.0
    probabilities[1, [BLOCK + 5, 2 * BLOCK]] = 0.5
    probabilities[2, [1, 4 * BLOCK - 2]] = torch.tensor([1e-30, 1.0])
    monkeypatch.setattr(torch, "rand", lambda *shape, dtype, device: torch.full(shape, number, dtype=dtype))
    first, second, third = draw(probabilities)[0].tolist()
    assert first == BLOCK + 5
    assert second == (BLOCK + 5 if number < 0.5 else 2 * BLOCK)
    assert third == (1 if number == 0.0 else 4 * BLOCK - 2)


def test_a_rare_token_is_as_rare_as_it_should_be(monkeypatch):
    """Of probability 3e-8 behind a thousand others: cumulative sums in fp32 are multiples of 6e-8 there."""
    rare = 3e-8
    probabilities = torch.full((2, 1001), (1 - rare) / 1000)
    probabilities[:, -1] = rare
    numbers = torch.tensor([[1 - 0.9 * rare], [1 - 1.1 * rare]], dtype=torch.float64)
    monkeypatch.setattr(torch, "rand", lambda *shape, dtype, device: numbers)
    total = probabilities[0].double().sum()
    assert abs(total - 1) < 1e-7
    assert draw(probabilities / total)[0].tolist() == [1000, 999]


class OnCard(torch.Tensor):
    """A tensor of a GPU, whose running sums torch refuses in deterministic mode."""

    is_cuda = property(lambda self: True)

    def cpu(self):
        return self.as_subclass(torch.Tensor)

    def cumsum(self, dim):
        if torch.are_deterministic_algorithms_enabled():
            raise RuntimeError("cumsum_cuda_kernel does not have a deterministic implementation")
        return self.cpu().cumsum(dim)


@pytest.mark.parametrize("deterministic", [True, False])
def test_under_full_determinism_a_gpu_draws_too(deterministic):
    values = torch.tensor([[1.0, 2.0, 3.0], [4.0, 0.0, 1.0]], dtype=torch.float64)
    torch.use_deterministic_algorithms(deterministic)
    try:
        sums = _running_sums(values.as_subclass(OnCard))
    finally:
        torch.use_deterministic_algorithms(False)
    assert sums.tolist() == [[1.0, 3.0, 6.0], [4.0, 4.0, 5.0]]


@pytest.mark.parametrize("value", [torch.nan, torch.inf, 0.0])
def test_what_has_no_distribution_is_not_drawn(value):
    probabilities = torch.ones(3, 300)
    probabilities[1] = value
    tokens, has_distribution = draw(probabilities)
    assert has_distribution.tolist() == [True, False, True]
    assert ((tokens >= 0) & (tokens < 300)).all()  # what is read of it lies within every table


@pytest.mark.parametrize("every", [1, 16])
def test_a_model_without_a_distribution_is_not_sampled_to_the_end(model, every, monkeypatch):
    monkeypatch.setattr("trl_prorl.rollout.compact.tokens_between_checks", lambda device: every)
    calls = []

    def spoil(head, states, logits):
        calls.append(len(logits))
        if len(calls) == 3:
            logits[0] = torch.nan

    hook = model.get_output_embeddings().register_forward_hook(spoil)
    try:
        with pytest.raises(RuntimeError, match="probability tensor contains"):
            compact(model, do_sample=True, max_new_tokens=40)
    finally:
        hook.remove()
    assert len(calls) == (3 if every == 1 else 16)


@pytest.mark.parametrize("merged", [False, True])
def test_a_head_in_bf16_gets_contiguous_states(make_trainer, tiny_model, merged):
    """From a slice of them torch makes a copy of the head for each row, on some CPUs."""
    policy = AutoModelForCausalLM.from_pretrained(tiny_model, dtype="bfloat16")
    slices = []

    def look(head, states, logits):
        slices.append(not states[0].is_contiguous())

    policy.get_output_embeddings().register_forward_hook(look)
    # Two prompts of several tokens: a slice of one row would be contiguous.
    made = make_trainer(model=policy, lora=merged, compact_generation="on")
    tried = len(slices)
    made.generate_tokens([[5, 6, 7], [8, 9, 10], [8, 9, 10]], 3)
    assert tried > 0
    assert len(slices) > tried
    assert not any(slices)
    assert not policy.get_output_embeddings()._forward_pre_hooks


def test_what_a_rollout_function_gives_of_its_sampler_is_left_to_trl(make_trainer):
    """TRL's off-policy mask reads it; the copy, which was not sampled, has nothing to do with it."""
    trainer = make_trainer(fast=True, trainer_kwargs={"rollout_func": make_interrupted_rollout(3, 2, "ANSWER:")})
    given = torch.zeros(4, 5)
    batch = {"sampling_per_token_logps": given}
    assert trainer.compact.take_logps(batch) is None
    assert batch["sampling_per_token_logps"] is given
