"""A run's own checkpoints load, also of an embedding resized in memory: as by PEFT, and as in the whole run."""

from pathlib import Path

import pytest
import torch
from peft import LoraConfig, PeftModel
from safetensors.torch import load_file
from tiny_run import BEST, LORA, QUESTIONS, set_evaluations
from transformers import AutoModelForCausalLM

from trl_prorl.eval.samples.models import load_point, trained_point


NEW_ROWS = 8


@pytest.fixture(scope="module")
def save_base(tiny_model, tmp_path_factory):
    """Return a function that saves the tiny model, and with more rows; it returns both folders."""

    def save(tied):
        model = AutoModelForCausalLM.from_pretrained(tiny_model)
        if not tied:
            model.config.tie_word_embeddings = False
            model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().flip(0).clone())
        folders = [tmp_path_factory.mktemp(name) for name in ("base", "resized")]
        model.save_pretrained(folders[0])
        torch.manual_seed(2)
        model.resize_token_embeddings(model.config.vocab_size + NEW_ROWS)
        model.save_pretrained(folders[1])
        return folders

    return save


def resized(base, larger):
    """The model of `base`, resized in memory to the weights of `larger`."""
    model = AutoModelForCausalLM.from_pretrained(base)
    model.resize_token_embeddings(model.config.vocab_size + NEW_ROWS, mean_resizing=False)
    model.load_state_dict(AutoModelForCausalLM.from_pretrained(larger).state_dict())
    return model


def policy_weights(model):
    return {name: tensor for name, tensor in model.state_dict().items() if ".ref." not in f"{name}."}


def adapter_weights(trainer, step):
    """The weights of the policy and of its reference, from a checkpoint."""
    folder = Path(trainer.args.output_dir, f"checkpoint-{step}")
    files = sorted(folder.rglob("adapter_model.safetensors"))
    assert len(files) == 2
    return {(file.parent == folder, name): tensor for file in files for name, tensor in load_file(file).items()}


def unequal(tensors, expected):
    assert tensors.keys() == expected.keys()
    return [name for name in expected if not torch.equal(tensors[name], expected[name])]


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize(
    "keys",
    [
        {"modules_to_save": ["embed_tokens"]},
        {"modules_to_save": ["lm_head"]},
        {"trainable_token_indices": [70, 84, 263]},
    ],
    ids=["embedding", "head", "tokens"],
)
def test_checkpoints_of_a_resized_embedding_load(make_trainer, save_base, keys, tied):
    """The best checkpoint is the one of step 2, at the end of the run and of its resume."""
    base, larger = save_base(tied)
    trainer_kwargs = {"peft_config": LoraConfig(**LORA, **keys), **QUESTIONS}
    settings = {**BEST, "learning_rate": 2e-2, "beta": 0.1, "ref_reset_every": 3, "lora": False}
    settings["trainer_kwargs"] = trainer_kwargs

    whole = set_evaluations(make_trainer(model=resized(base, larger), **settings), 1.0, 0.0)
    whole.train()
    whole.save_model()
    folder = Path(whole.args.output_dir)
    expected = PeftModel.from_pretrained(resized(base, larger), folder / "checkpoint-2").state_dict()
    assert unequal(policy_weights(whole.model), expected) == []
    assert len(unequal(adapter_weights(whole, 4), adapter_weights(whole, 2))) > 4

    resumed = set_evaluations(make_trainer(model=resized(base, larger), **settings), 0.0)
    resumed.train(resume_from_checkpoint=str(folder / "checkpoint-2"))
    assert unequal(policy_weights(resumed.model), expected) == []
    assert unequal(adapter_weights(resumed, 4), adapter_weights(whole, 4)) == []

    config = {"model_name_or_path": str(larger)}
    evaluated = load_point(trained_point(folder), config)
    assert unequal(evaluated.state_dict(), expected) == []
