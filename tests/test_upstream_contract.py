"""What the trainer relies on inside TRL and transformers. A failure here names what changed and what depends on it."""

import inspect
import re

import pytest
import torch
from peft import PeftModel
from peft.tuners.lora.layer import LoraLayer
from transformers import PreTrainedModel, PreTrainedTokenizerBase, Trainer
from trl import GRPOTrainer
from trl.generation.vllm_generation import VLLMGeneration

from trl_prorl.launch.rehearsal import OF_THE_TRAINER
from trl_prorl.upstream_keys import TRAINING_KEYS


METHODS = {
    GRPOTrainer: {
        "_generate_and_score_completions": "where a reset is applied and π_old and π_ref are scored",
        "_get_per_token_logps_and_entropies": "where forwards are counted and log-probabilities are captured",
        "_compute_loss": "where penalties are added",
        "_prepare_inputs": "which hands out the dicts of the buffer, so that the first pass's log-probabilities last",
        "_save_checkpoint": "which writes aside, so that a checkpoint gets its name when it is whole",
        "_get_train_sampler": "whose order is moved on to a resumed epoch",
        "_calculate_rewards": "where rewards are kept for advantages, dynamic sampling and the record",
        "_tokenize_prompts": "behind ProRLTrainer.tokenize_prompts",
        "_generate_single_turn": "behind ProRLTrainer.generate_tokens",
        "_tool_call_loop": "where a task replies, and stops the run if it cannot",
    },
    Trainer: {
        "_maybe_log_save_evaluate": "where a step's row is written",
        "_evaluate": "where the triggers' metrics are looked for",
        "evaluation_loop": "whose metrics get pass@k, before they are logged and before callbacks see them",
        "_inner_training_loop": "where the logs are continued",
        "_init_training_state": "which looks for the best checkpoint where it was",
        "_run_epoch": "which must not begin for a run that is resumed at its end",
        "_get_output_dir": "which says where a checkpoint is written",
        "_push_from_checkpoint": "which has to wait for the checkpoint's name, and pushes our files",
        "init_hf_repo": "which is done before a model is loaded",
        "_finish_current_push": "which waits for `push_in_progress`",
        "_save": "which pickles the arguments, token and all",
        "_load_from_checkpoint": "which loads adapters of the rank that they had grown to",
        "_load_best_model": "which does so at the end",
        "_issue_warnings_after_load": "which loads again what has other names in the file than in the model",
        "_load_optimizer_and_scheduler": "the step of a resume where everything of ours is loaded",
        "_clip_grad_norm": "before which gradients are looked at",
        "_get_grad_norm": "after which an update is stopped or left out",
    },
}
# What stands in a method, in this order.
IN_ORDER = [
    # An update comes after the norm, with the moments at which an export looks.
    (
        *(Trainer, "_run_epoch"),
        ["on_step_begin(", "self.training_step(", "self._clip_grad_norm(", "self._get_grad_norm("]
        + ["on_pre_optimizer_step(", "self.optimizer.step()", "on_optimizer_step("],
    ),
    # Every model that is loaded reports what its file lacks; every adapter is loaded by the method that is wrapped.
    (PreTrainedModel, "_finalize_model_loading", ["log_state_dict_report(", "loading_info=loading_info"]),
    (PeftModel, "from_pretrained", ["model.load_adapter("]),
    # A save asks where to write.
    (Trainer, "_save_checkpoint", ["self._get_output_dir(trial=trial)"]),
    # The evaluation that a run has once, and how it is told from others.
    (
        *(Trainer, "_inner_training_loop"),
        ["if args.eval_on_start:", "self._evaluate(trial, ignore_keys_for_eval, skip_scheduler=True)"],
    ),
    # A save of an epoch's last step can wait for the end of the epoch.
    (Trainer, "_run_epoch", ["self._maybe_log_save_evaluate(", "self.callback_handler.on_epoch_end("]),
    # What a training that was broken off leaves behind.
    (Trainer, "train", ["self.neftune_hook_handle = activate_neftune("]),
    (
        GRPOTrainer,
        "__init__",
        ["self._metrics = ", "self._logs = ", "self._pending_extra_logs", "self._pending_metrics"],
    ),
    (Trainer, "_prepare_for_training", ["self._load_optimizer_and_scheduler("]),
    # An evaluation logs what its loop found.
    (
        *(Trainer, "evaluate"),
        ["self.evaluation_loop(", "metric_key_prefix=metric_key_prefix,", "self.log(output.metrics)"]
        + ["self.callback_handler.on_evaluate(self.args, self.state, self.control, output.metrics)"],
    ),
    # A prompt's tools are those of its environment; `tokenize_prompts` comes before a batch has any.
    (GRPOTrainer, "_tokenize_prompts", ["zip(prompts, self._batch_environments, strict=True)"]),
    # An error of a tool is its answer, so that one that has to stop the run is no `Exception`.
    (GRPOTrainer, "_tool_call_loop", ["try:", "sync_tool_dict[name](", "except Exception as e:"]),
    # vLLM gets the weights once a step, with the adapter merged.
    *(
        (GRPOTrainer, method, [text])
        for method in ("_generate_single_turn", "_generate")
        for text in ("self.state.global_step != self._last_loaded_step", "vllm_generation.sync_weights()")
    ),
    # Each weight is handed on as it is read, so that it can be merged there.
    (VLLMGeneration, "_iter_named_params", ["model.merge_adapter()", "yield name, param.data"]),
    (VLLMGeneration, "_iter_named_params", ["yield name, param.data", "model.unmerge_adapter()"]),
    (VLLMGeneration, "sync_weights", ["in self._iter_named_params():", "load_weights([(name, param)])"]),
    # `vllm_enable_lora` replaces both.
    (VLLMGeneration, "_init_vllm", ["self.llm = LLM("]),
    (VLLMGeneration, "generate", ["self.llm.generate(vllm_prompts, sampling_params="]),
    # A resumed run's best checkpoint is looked for in the working directory.
    (Trainer, "_init_training_state", ["not os.path.isdir(self.state.best_model_checkpoint)", '"The best checkpoint']),
    # Pushes are made where ours replace them.
    (GRPOTrainer, "_save_checkpoint", ["self.create_model_card("]),
    (Trainer, "_save", ["torch.save(self.args,"]),
    (Trainer, "save_model", ["self._save("]),
    (Trainer, "__init__", ["if self.args.push_to_hub:\n            self.init_hf_repo()"]),
    (Trainer, "_finish_current_push", ["self.push_in_progress"]),
    (Trainer, "init_hf_repo", ["self.hub_model_id = "]),
    # Packing replaces this method, all but the shuffle: what TRL adds to it has to be looked at.
    (
        *(GRPOTrainer, "_prepare_inputs"),
        ["self._step % generate_every == 0 or self._buffered_inputs is None", "split_pixel_values_by_grid("]
        + ["shuffle_sequence_dict(", "split_tensor_dict(", "unsplit_pixel_values_by_grid("]
        + ["inputs = self._buffered_inputs[self._step % self.args.steps_per_generation]"],
    ),
]


def source(function):
    return inspect.getsource(inspect.unwrap(function))


@pytest.mark.parametrize("cls, name", [(cls, name) for cls, names in METHODS.items() for name in names])
def test_a_class_still_has(cls, name):
    assert hasattr(cls, name), f"TRL or transformers no longer has {cls.__name__}.{name}, {METHODS[cls][name]}"


@pytest.mark.parametrize("cls, method, texts", IN_ORDER)
def test_a_method_still_has_in_this_order(cls, method, texts):
    code = source(getattr(cls, method))
    missing = [text for text in texts if text not in code]
    assert not missing, f"{cls.__name__}.{method} no longer has {missing}"
    assert sorted(texts, key=code.index) == texts


def test_gradients_are_clipped_in_one_place():
    assert "self._clip_grad_norm(" not in source(Trainer._get_grad_norm)
    assert source(Trainer._clip_grad_norm).count("clip_grad_norm_(") == 1


def test_a_sampler_s_order_comes_from_its_own_generator(make_trainer):
    sampler = make_trainer()._get_train_sampler()
    expected = torch.randperm(16, generator=torch.Generator().manual_seed(7)).tolist()
    assert list(dict.fromkeys(sampler)) == expected, "one permutation an epoch, of a generator with the run's seed"


def test_where_arguments_stand():
    def names(method):
        return list(inspect.signature(inspect.unwrap(method)).parameters)

    assert names(Trainer._maybe_log_save_evaluate)[1:3] == ["tr_loss", "grad_norm"], "the record reads grad_norm there"
    scoring = GRPOTrainer._get_per_token_logps_and_entropies
    assert names(scoring)[1:5] == ["model", "input_ids", "attention_mask", "logits_to_keep"]
    assert names(Trainer._init_training_state)[4] == "resume_from_checkpoint"
    calls = re.findall(r"\bmodel\(([^)]*)\)", source(scoring))
    assert calls == ["**model_inputs, labels=labels, fused_lm_head=True"], "forwards are counted by wrapping this call"


def test_the_rows_that_are_sampled_are_those_that_are_rewarded():
    text = source(GRPOTrainer._generate_and_score_completions)
    assert "self._calculate_rewards(inputs, prompts, completions, completion_ids_list)" in text
    assert not re.search(r"\binputs = ", text), "their outcome is left on that very list"


def test_old_policy_and_reference_are_scored_under_the_same_conditions():
    text = source(GRPOTrainer._generate_and_score_completions)
    assert "self.args.gradient_accumulation_steps % generate_every != 0" in text
    assert text.count("ref_per_token_logps, _, _ = ") == 2
    assert "if self.beta != 0.0:" in text
    assert "if old_per_token_logps is not None" in text, "None says that the first pass provides them"
    assert "if ref_per_token_logps is not None" in text, "None says that every pass provides them"


def test_the_loss_reads_beta_and_the_buffer_where_we_write_them():
    text = source(GRPOTrainer._compute_loss)
    assert text.count("if self.beta != 0.0:") == 3, "the KL term is switched off through self.beta"
    assert 'inputs.get("old_per_token_logps")' in text
    assert 'inputs["ref_per_token_logps"]' in text
    assert "compute_entropy=True" in text
    # Without π_old (`loss_mode: no_ratio`) only the mask of samples too far off policy needs the sampler's log-probs.
    assert text.count('inputs.get("sampling_per_token_logps", old_per_token_logps)') == 1
    assert text.count('"sampling_per_token_logps"') == text.count('inputs.get("old_per_token_logps")') == 1


def test_every_loss_type_of_trl_has_known_weights():
    from trl_prorl.objective.aggregation import token_weights

    text = source(GRPOTrainer._compute_loss)
    aggregation = text[text.index('mode = "train" if self.model.training') :]
    aggregation = aggregation[: aggregation.index("# Entropy bonus")]
    branches = re.findall(r"self\.loss_type (?:==|in) (.*):", aggregation)
    named = {name for branch in branches for name in re.findall(r'"(\w+)"', branch)}
    assert len(named) >= 8, "the aggregation was not found"
    for loss_type in named:
        token_weights(torch.ones(1, 2), loss_type, max_completion_length=2, items_per_window=1.0)


def test_the_buffer_hands_out_the_same_dict_twice(make_trainer):
    trainer = make_trainer()
    trainer.model.train()
    batch = [{"prompt": trainer.train_dataset[0]["prompt"]} for _ in range(8)]
    first = trainer._prepare_inputs(batch)
    trainer._step += 1
    assert trainer._prepare_inputs(batch) is first


def test_ref_is_made_beside_default_for_a_peft_model(make_trainer, trained_adapter):
    trainer = make_trainer(model=trained_adapter(), lora=False, beta=0.1)
    model = trainer.accelerator.unwrap_model(trainer.model)
    assert set(model.peft_config) == {"default", "ref"}
    assert model.active_adapter == "default"
    parameters = dict(model.named_parameters())
    names = {name: name.replace(".default.", ".ref.") for name in parameters if ".default." in name}
    assert names
    assert all(torch.equal(parameters[name], parameters[ref]) for name, ref in names.items())


def test_every_initialisation_of_lora_is_known():
    """One that changes the model has to be refused."""
    named = re.findall(r'init_lora_weights\S* ?(?:==|\.startswith\() ?"(\w+)"', source(LoraLayer.update_layer))
    assert set(named) == {"pissa", "corda", "olora", "mica", "loftq", "eva", "orthogonal", "lora_ga"}


# By key, the function of TRL's that knows its words, and how it compares it with them.
WORDS_KNOWN_BY = {
    "loss_type": (GRPOTrainer._compute_loss, r"self\.loss_type (?:==|in) (\[[^\]]*\]|\"\w+\")"),
    "importance_sampling_level": (GRPOTrainer._compute_loss, r"self\.importance_sampling_level == (\"\w+\")"),
    "scale_rewards": (
        GRPOTrainer._generate_and_score_completions,
        r"self\.scale_rewards (?:==|in) ([\[(][^\])]*|\"\w+\")",
    ),
    "multi_objective_aggregation": (
        GRPOTrainer._generate_and_score_completions,
        r"self\.multi_objective_aggregation == (\"\w+\")",
    ),
    "vllm_importance_sampling_mode": (
        GRPOTrainer._generate_and_score_completions,
        r"self\.vllm_importance_sampling_mode in (\[[^\]]*\])",
    ),
    "vllm_mode": (VLLMGeneration, r"self\.mode == (\"\w+\")"),
}


@pytest.mark.parametrize("key", WORDS_KNOWN_BY)
def test_the_words_of_a_key_that_trl_checks_while_it_trains(key):
    """trl_prorl/upstream_keys.py refuses others before a model is loaded."""
    function, comparison = WORDS_KNOWN_BY[key]
    found = re.findall(comparison, inspect.getsource(function))
    known = {word for part in found for word in re.findall(r'"(\w+)"', part)}
    assert known == set(TRAINING_KEYS[key].values.names)


def test_the_arguments_of_the_method_that_applies_a_chat_template():
    """trl_prorl/launch/rehearsal.py leaves them to the trainer."""
    named = set(inspect.signature(PreTrainedTokenizerBase.apply_chat_template).parameters)
    assert set(OF_THE_TRAINER) - {"messages"} <= named  # which is the template's name for the conversation
    call = re.search(
        r"apply_chat_template\((.*?)\*\*self", inspect.getsource(GRPOTrainer._tokenize_prompts), re.DOTALL
    )
    assert set(re.findall(r"(\w+)=", call[1])) <= set(OF_THE_TRAINER)
