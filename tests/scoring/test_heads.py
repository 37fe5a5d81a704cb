"""The head in fp32, with TRL's full model as the control; the frozen head as attention and LoRA by products alone."""

import copy
from contextlib import nullcontext

import pytest
import torch
from packed_models import batch_of, build, with_adapter
from peft import LoraConfig, get_peft_model
from peft.tuners.lora.layer import Linear
from run_record import read_rows as rows
from tiny_run import TOKENS
from transformers import AutoModelForCausalLM
from trl import GRPOTrainer
from trl.kernels import ChunkedLogProbFunction
from trl.trainer.utils import add_fused_lm_head

from trl_prorl.fast.head import FrozenHead, add_frozen_head
from trl_prorl.fast.lean_lora import LeanLinear, use_lean_layers
from trl_prorl.fast.packing import packed_logps


EVERYWHERE = {"lora": False, "trainer_kwargs": {"peft_config": LoraConfig(r=4, target_modules="all-linear")}}
KEYS = {"cast_lm_head_to_fp32": True, "model_init_kwargs": {"dtype": "bfloat16"}}


@pytest.fixture(scope="module")
def models(tiny_model, tmp_path_factory):
    """Paths of a tied and an untied model, in bf16."""
    paths = {}
    for tied in (True, False):
        folder = str(tmp_path_factory.mktemp("model"))
        model = AutoModelForCausalLM.from_pretrained(tiny_model, tie_word_embeddings=tied)
        with torch.no_grad():
            model.lm_head.weight.mul_(0.5)
        model.to(torch.bfloat16).save_pretrained(folder)
        paths[tied] = folder
    return paths


def scores(trainer):
    """Log-probabilities as in the loss, and logits as in generation."""
    with torch.no_grad():
        score = trainer._get_per_token_logps_and_entropies
        logps, entropies, _ = score(trainer.model, TOKENS, torch.ones_like(TOKENS), 5, compute_entropy=True)
        return logps, entropies, trainer.model(TOKENS).logits


@pytest.mark.parametrize("tied", [True, False])
def test_a_new_adapter_changes_nothing(make_trainer, models, tied):
    full = scores(make_trainer(GRPOTrainer, model=models[tied], lora=False, **KEYS))
    lower = scores(make_trainer(model=models[tied], **EVERYWHERE, **KEYS | {"cast_lm_head_to_fp32": False}))
    assert not torch.equal(lower[2].float(), full[2])  # the cast does something
    for keys in ({}, {"beta": 0.1, "ref_reset_every": 2}, {"beta": 0.1}, {"beta_base": 0.1}):
        trainer = make_trainer(model=models[tied], **EVERYWHERE, **KEYS, **keys)
        assert trainer.args.cast_lm_head_to_fp32
        for mine, theirs in zip(scores(trainer), full, strict=True):
            assert mine.dtype == torch.float32 and torch.equal(mine, theirs), keys
        base = trainer.model.get_base_model()
        assert base.lm_head.weight.dtype == torch.float32
        assert (base.lm_head.weight is base.model.embed_tokens.weight) == tied
        assert base.model.layers[0].mlp.down_proj.base_layer.weight.dtype == torch.bfloat16
        assert base.model.embed_tokens(TOKENS).dtype == torch.bfloat16


@pytest.mark.parametrize("keys", [{"ref_reset_every": 2}, {"loss_mode": "clipped"}], ids=["A", "control"])
def test_the_reference_scores_as_the_policy_does(run, models, keys):
    trainer = run(model=models[True], **EVERYWHERE, **KEYS, **keys, beta=0.1, beta_base=0.1)
    first, second, third, _ = rows(trainer)
    assert first["kl_ref"] == first["kl_base"] == 0.0
    assert second["kl_ref"] > 0.0
    assert third["kl_base"] > 0.0
    assert third["kl_ref"] == 0.0 if "ref_reset_every" in keys else third["kl_ref"] > 0.0


def test_where_trl_s_cast_works_ours_gives_the_same_weights(run, models, weights):
    ours, theirs = (run(*cls, model=models[False], **EVERYWHERE, **KEYS) for cls in ((), (GRPOTrainer,)))
    a, b = ({name: value for name, value in weights(one).items() if "lora" in name} for one in (ours, theirs))
    assert a.keys() == b.keys()
    assert all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("cast", [True, False])
def test_a_frozen_copy_computes_in_the_policy_s_dtypes(run, models, tied, cast):
    trainer = run(model=models[tied], lora=False, beta_base=0.1, **KEYS | {"cast_lm_head_to_fp32": cast}, max_steps=1)
    assert rows(trainer)[0]["kl_base"] == 0.0
    copy = trainer.base.ref_model
    kept = [param.dtype for name, param in copy.named_parameters() if "lm_head" not in name and "embed" not in name]
    assert set(kept) == {torch.bfloat16}
    assert (copy.lm_head.weight is copy.model.embed_tokens.weight) == tied


def test_a_frozen_copy_keeps_a_head_of_higher_precision(make_trainer, models):
    model = AutoModelForCausalLM.from_pretrained(models[False], dtype=torch.bfloat16)
    model.lm_head.float().weight.data.mul_(1.001)  # no value of bf16
    trainer = make_trainer(model=model, lora=False, beta_base=0.1, cast_lm_head_to_fp32=True)
    assert torch.equal(trainer.base.ref_model.lm_head.weight, model.lm_head.weight)


def errors(dtype, temperature, score):
    """Root mean squares by which log-probabilities, entropies and gradients err, over 40 states and 3,000 tokens."""
    torch.manual_seed(0)
    states, weight = (torch.randn(*shape, dtype=torch.float64) for shape in ((40, 48), (3000, 48)))
    states, weight = (part.to(dtype) for part in (states, weight / 4))
    labels = torch.randint(0, 3000, (40,))
    wanted = torch.randn(40)
    exact = states.double().requires_grad_()
    all_logps = (exact @ weight.double().t() / temperature).log_softmax(-1)
    logps = all_logps.gather(1, labels[:, None])[:, 0]
    (of_states,) = torch.autograd.grad((logps * wanted.double()).sum(), exact)
    states.requires_grad_()
    found, entropies = score(states, weight, labels)
    (gradient,) = torch.autograd.grad((found * wanted).sum(), states)
    assert not entropies.requires_grad or score is not ours
    pairs = ((found, logps), (entropies, -(all_logps.exp() * all_logps).sum(-1)), (gradient, of_states))
    return [(mine.double() - true).square().mean().sqrt().item() for mine, true in pairs]


def ours(states, weight, labels, temperature=0.7):
    return FrozenHead.apply(states, weight, labels, 1 / temperature)


def trls(states, weight, labels, temperature=0.7):
    outputs = ("log_probs", "entropy")
    return ChunkedLogProbFunction.apply(states, weight, None, labels, temperature, 1024, None, 1.0, outputs)[:2]


def test_numbers_in_fp32_and_in_bf16_where_it_errs_no_more_than_trl():
    assert max(errors(torch.float32, 0.7, ours)) < 2e-6
    mine = errors(torch.bfloat16, 0.7, ours)
    theirs = errors(torch.bfloat16, 0.7, trls)
    assert all(a <= b for a, b in zip(mine, theirs, strict=True)), (mine, theirs)


@pytest.mark.parametrize("groups, calls", [([(5, [3, 1]), (2, [4])], 1), ([(5, [0])], 0)], ids=["some", "no label"])
@pytest.mark.parametrize("case", ["frozen", "trained", "bias", "scaled", "unpacked"])
def test_which_calls_it_scores_and_that_values_stay(monkeypatch, case, groups, calls):
    model = build()
    if case == "bias":
        model.lm_head.bias = torch.nn.Parameter(torch.randn(model.config.vocab_size))
    if case == "scaled":
        model.config.logit_scale = 0.5
    add_fused_lm_head(model, 0.7, outputs=("log_probs", "entropy"))
    model = with_adapter(model)
    model.get_output_embeddings().weight.requires_grad_(case == "trained")
    ids, mask, keep = batch_of(groups)
    before = packed_logps(model, ids, mask, keep, compute_entropy=True)
    add_frozen_head(model.get_base_model(), 0.7)
    made = []
    apply = FrozenHead.apply
    monkeypatch.setattr(FrozenHead, "apply", lambda *given: made.append(1) or apply(*given))
    after = packed_logps(model, ids, mask, keep, compute_entropy=True)
    torch.testing.assert_close(after, before, atol=2e-6, rtol=0)
    if case == "unpacked":
        made.clear()
        scored = model(input_ids=ids, attention_mask=mask, labels=ids, fused_lm_head=True)
        assert scored.log_probs.shape == (len(ids), ids.shape[1] - 1)
        assert model(ids).logits.dim() == 3
        assert not made
    else:
        assert len(made) == (calls if case == "frozen" else 0)


def layer_of(bias=False, dtype=torch.float32, **keys):
    """A model of one linear layer, 24 to 40, whose adapter is not zero."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(24, 40, bias=bias).to(dtype))
    model = get_peft_model(model, LoraConfig(r=4, lora_alpha=12, target_modules=["0"], **keys))
    for name, param in model.named_parameters():
        if "lora_" in name:
            param.data.normal_()
    return model


def results(model, mixed):
    """The output and all gradients, in double precision."""
    torch.manual_seed(1)
    states = torch.randn(2, 5, 24, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16, enabled=mixed):
        output = model(states)
    trained = [param for param in model.parameters() if param.requires_grad]
    gradients = torch.autograd.grad(output, [states, *trained], torch.randn(2, 5, 40).to(output.dtype))
    assert [part.dtype for part in gradients] == [torch.float32] * len(gradients)
    return [part.double() for part in (output, *gradients)]


@pytest.mark.parametrize("trained", [(), ("bias",), ("weight",), ("bias", "weight")], ids=str)
@pytest.mark.parametrize("bias", [True, False])
def test_values_and_gradients_are_pefts(bias, trained):
    """Of whatever is trained: biases are, by `bias="lora_only"`."""
    model = layer_of(bias)
    for name, param in model.base_model.model[0].base_layer.named_parameters():
        param.requires_grad_(name in trained)
    other = copy.deepcopy(model)
    use_lean_layers(other)
    assert {type(layer) for layer in other.modules()} & {Linear, LeanLinear} == {LeanLinear}
    for theirs, mine in zip(results(model, False), results(other, False), strict=True):
        torch.testing.assert_close(mine, theirs, atol=2e-5, rtol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_under_autocast_it_errs_no_more_than_peft(dtype):
    model = layer_of(True, dtype)
    exact = copy.deepcopy(model).float()
    other = copy.deepcopy(model)
    use_lean_layers(other)
    for true, theirs, mine in zip(results(exact, False), results(model, True), results(other, True), strict=True):
        assert (mine - true).norm() <= 1.1 * (theirs - true).norm()


@pytest.mark.parametrize("way", ["disabled", "merged", "two adapters", "bf16 weights, no autocast"])
def test_other_calls_are_pefts_to_the_bit(way):
    model = layer_of(dtype=torch.bfloat16 if "bf16" in way else torch.float32)
    if way == "two adapters":
        model.add_adapter("other", LoraConfig(r=2, target_modules=["0"], init_lora_weights=False))
        model.base_model.set_adapter(["default", "other"])
    if way == "merged":
        model.merge_adapter()
    other = copy.deepcopy(model)
    use_lean_layers(other)
    states = torch.ones(3, 24, dtype=torch.bfloat16 if "bf16" in way else torch.float32)
    found = []
    for each in (model, other):
        with each.disable_adapter() if way == "disabled" else nullcontext():
            found.append(each(states))
    assert torch.equal(*found)


@pytest.mark.parametrize("case", ["use_dora", "lora_dropout", "lora_bias", "replaced", "hook"])
def test_layers_that_are_left_alone(case):
    keys = {"lora_dropout": {"lora_dropout": 0.5}, "lora_bias": {"lora_bias": True}, "use_dora": {"use_dora": True}}
    model = layer_of(True, **keys.get(case, {}))
    base = model.base_model.model[0].base_layer
    if case == "replaced":
        base.forward = base.forward
    if case == "hook":
        base.register_forward_hook(lambda *given: None)
    use_lean_layers(model)
    assert not any(isinstance(layer, LeanLinear) for layer in model.modules())
