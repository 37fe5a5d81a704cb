"""What a resume may change: it acts with `allow_config_change`, or is refused."""

import shutil
from pathlib import Path

import pytest
import torch
from peft import LoraConfig
from run_record import hash_files, read_events, read_rows
from tiny_run import LORA, constant
from tokenizers.normalizers import Lowercase
from transformers import AutoModelForCausalLM, AutoTokenizer


# Two steps a generation: checkpoint-2 is at a batch's end, and a reset waits there; checkpoint-3 is inside a batch.
KEYS = {
    "beta": 0.3,
    "ref_reset_every": 2,
    "num_iterations": 2,
    "max_steps": 4,
    "save_strategy": "steps",
    "save_steps": 1,
    "lr_scheduler_type": "linear",
    "warmup_steps": 2,
    "weight_decay": 0.1,
    "optim": "adamw_torch",
}


@pytest.fixture(scope="module")
def kept():
    return []


@pytest.fixture
def begun(kept, run, weights):
    """Output folder of a run of four steps, and its last weights."""
    if not kept:
        trainer = run(**KEYS)
        kept.extend([Path(trainer.args.output_dir), weights(trainer)])
    return kept


@pytest.fixture
def resumed(begun, make_trainer):
    """A function that resumes that run with other keys, in a folder of its own."""

    def resume(step=2, trainer_kwargs=None, **changed):
        trainer = make_trainer(**{**KEYS, **changed}, allow_config_change=True, trainer_kwargs=trainer_kwargs)
        trainer.train(resume_from_checkpoint=str(begun[0] / f"checkpoint-{step}"))
        return trainer

    return resume


def column(trainer, name):
    return [row[name] for row in read_rows(trainer)]


# Linear, two steps of warm-up, four in all, 5e-3: steps 3 and 4 are made with 5e-3 and 2.5e-3.
SCHEDULE = {
    "learning_rate": ({"learning_rate": 1e-3}, [1e-3, 5e-4]),
    "warmup_steps": ({"warmup_steps": 0}, [2.5e-3, 1.25e-3]),
    "max_steps": ({"max_steps": 6}, [5e-3, 3.75e-3, 2.5e-3, 1.25e-3]),
    "lr_scheduler_type": ({"lr_scheduler_type": "constant_with_warmup"}, [5e-3, 5e-3]),
    # Another key leaves the schedule alone.
    "max_grad_norm": ({"max_grad_norm": 0.5}, [5e-3, 2.5e-3]),
}


@pytest.mark.parametrize("case", SCHEDULE)
def test_the_rate_is_that_of_the_new_schedule_at_the_old_step(resumed, case):
    changed, expected = SCHEDULE[case]
    assert column(resumed(**changed), "lr") == pytest.approx(expected, rel=1e-9)


def test_a_restarted_schedule_starts_from_the_new_rate(resumed):
    assert column(resumed(learning_rate=1e-3, optimizer_reset="hard"), "lr") == [0.0, 5e-4]


def test_the_optimizer_has_the_new_hyperparameters_and_the_old_moments(resumed):
    changed = {"weight_decay": 0.3, "adam_beta1": 0.8, "adam_beta2": 0.95, "adam_epsilon": 1e-6}
    trainer = resumed(step=4, **changed)  # its last: no step comes after the load
    groups = trainer.optimizer.param_groups
    (group,) = [group for group in groups if group["weight_decay"] and group["params"]]
    assert (group["weight_decay"], group["betas"], group["eps"]) == (0.3, (0.8, 0.95), 1e-6)
    (steps,) = {int(state["step"]) for state in trainer.optimizer.state.values()}
    assert steps == 4
    assert any(state["exp_avg"].any() for state in trainer.optimizer.state.values())


def test_coefficients_and_where_they_are_adapted(resumed, run, resume):
    assert column(resumed(beta=0.1), "beta") == [0.1, 0.1]
    whole = run(**KEYS, kl_target=1e-4, kl_horizon=3)
    adapted = column(whole, "beta")[-1]
    assert adapted != 0.3
    for changed, expected in (({"kl_target": None}, 0.3), ({"kl_target": 2e-4, "kl_horizon": 3}, adapted)):
        again = resume(whole, 4, **KEYS, **changed, allow_config_change=True)
        assert again.beta == pytest.approx(expected, rel=1e-12)


def test_an_adaptive_entropy_coefficient_starts_from_a_changed_key_and_else_from_where_it_was(run, resume):
    adaptive = {"use_adaptive_entropy": True, "entropy_coef": 0.01, "entropy_coef_delta": 0.01, "entropy_target": 1e9}
    keys = KEYS | adaptive | {"entropy_coef_max": 1.0, "allow_config_change": True}
    whole = run(**keys)
    for changed, expected in (({"entropy_coef": 0.5}, [0.51, 0.52]), ({"max_grad_norm": 0.5}, [0.04, 0.05])):
        again = resume(whole, 2, **keys | changed)
        assert column(again, "entropy_coef") == pytest.approx(expected)


def resets(trainer):
    return [(event["step_applied"], event["reason"]) for event in read_events(trainer, "reset")]


def test_triggers_that_come_and_go(resumed, run, resume):
    # The request that waits at step 2 is kept; a trigger that was not there remembers nothing.
    assert resets(resumed(ref_reset_every=4, max_steps=8)) == [(2, "periodic"), (4, "periodic")]
    spike = resumed(ref_reset_every=0, ref_reset_kl=1e-9, ref_reset_kl_window=2, max_steps=6)
    assert resets(spike)[0] == (2, "periodic")
    assert {reason for _, reason in resets(spike)[1:]} == {"kl_spike"}
    for lora in (True, False):
        keys = {**KEYS, "ref_reset_every": 0, "save_steps": 2, "lora": lora}
        changed = keys | {"ref_reset_every": 3, "max_steps": 6, "allow_config_change": True}
        trainer = resume(run(**keys), 2, **changed)
        assert resets(trainer) == [(4, "periodic")]
        assert column(trainer, "kl_ref")[0] > 0  # until then the reference is the policy as the run began


def test_a_half_used_batch_is_continued_as_it_was_made(begun, resumed):
    """Checkpoint 3 lies within a batch; its end, checkpoint 2, allows the change."""
    before = hash_files(begun[0])
    with pytest.raises(ValueError, match="num_iterations: 2 -> 1"):
        resumed(step=3, num_iterations=1)
    assert hash_files(begun[0]) == before
    assert resumed(step=2, num_iterations=1).state.global_step == 4


SAME_RUN = {"beta": 0.3, "ref_reset_every": 3, "max_steps": 4, "save_strategy": "steps", "save_steps": 2}


def test_another_run_is_refused_and_an_allowed_change_is_an_event(run, make_trainer, tiny_model, tmp_path):
    out = run(**SAME_RUN).args.output_dir
    log = Path(out, "metrics.jsonl").read_text()
    model = AutoModelForCausalLM.from_pretrained(tiny_model)
    with torch.no_grad():
        model.model.layers[0].mlp.up_proj.weight[0, 0] += 0.5
    model.save_pretrained(tmp_path / "other")
    adapter = LoraConfig(**LORA | {"lora_alpha": 32})
    brief, special = (AutoTokenizer.from_pretrained(tiny_model) for _ in range(2))
    brief.chat_template = "{{ messages[-1]['content'] }}"
    special.bos_token = special.convert_ids_to_tokens(65)  # which no text of a completion then has
    lower = AutoTokenizer.from_pretrained(tiny_model)
    lower.backend_tokenizer.normalizer = Lowercase()
    coarse = AutoModelForCausalLM.from_pretrained(tiny_model, rms_norm_eps=0.1)
    for change, message in (
        ({"trainer_kwargs": {"processing_class": brief}}, "chat template: "),
        ({"trainer_kwargs": {"processing_class": special}}, "tokenizer: "),
        ({"trainer_kwargs": {"processing_class": lower}}, "tokenizer: "),
        ({"beta": 0.2, "num_generations": 8}, "beta: 0.3 -> 0.2; num_generations: 4 -> 8"),
        ({"prompts": 15}, "rows of the training set"),
        ({"reward": constant(0.0)}, "reward functions"),
        ({"model": coarse}, "rms_norm_eps of the model: 1e-06 -> 0.1"),
        ({"model": str(tmp_path / "other")}, "weights of the model"),
        ({"lora": False, "trainer_kwargs": {"peft_config": adapter}}, "lora_alpha of the adapter: 8 -> 32"),
    ):
        with pytest.raises(ValueError, match=message):
            make_trainer(output_dir=out, **{**SAME_RUN, **change}).train(resume_from_checkpoint=True)
    assert Path(out, "metrics.jsonl").read_text() == log
    saved = {"processing_class": AutoTokenizer.from_pretrained(Path(out, "checkpoint-2"))}  # the same
    changed = {"beta": 0.2, "max_steps": 6, "trainer_kwargs": saved}
    trainer = make_trainer(output_dir=out, allow_config_change=True, **SAME_RUN | changed)
    trainer.train(resume_from_checkpoint=True)
    assert read_events(out, "resume")[-1]["changed"] == {"beta": [0.3, 0.2]}
    assert [row["beta"] for row in read_rows(out)] == [0.3] * 4 + [0.2] * 2


def test_a_key_that_a_script_sets_on_the_trainer_s_arguments_is_compared(make_trainer):
    begun, same, other = (make_trainer(**SAME_RUN) for _ in range(3))
    begun.args.max_grad_norm = same.args.max_grad_norm = 0.01
    begun.train()
    checkpoint = str(Path(begun.args.output_dir, "checkpoint-2"))
    same.train(resume_from_checkpoint=checkpoint)
    assert same.state.global_step == 4
    with pytest.raises(ValueError, match="max_grad_norm: 0.01 -> 1.0"):
        other.train(resume_from_checkpoint=checkpoint)


def test_a_run_resumes_from_a_model_at_another_path(run, make_trainer, tiny_model, tmp_path):
    """A checkout, or a cache, on another machine."""
    whole = run(**SAME_RUN)
    moved = shutil.copytree(tiny_model, tmp_path / "elsewhere")
    again = make_trainer(**SAME_RUN, model=str(moved))
    again.train(resume_from_checkpoint=str(Path(whole.args.output_dir, "checkpoint-2")))
    assert read_events(again, "resume")[-1]["changed"] == {}
