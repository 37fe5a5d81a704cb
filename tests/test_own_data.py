"""A run of a reward and data of one's own: pass@k and drift, from its script and by the commands."""

import json
import shutil
from pathlib import Path

import pandas as pd
import pytest
import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, ProcessorMixin
from trl import GRPOTrainer

from trl_prorl import drift, evaluate
from trl_prorl.errors import InputError, RunError
from trl_prorl.eval.run_folder.reading import load_run
from trl_prorl.pass_at_k import pass_at_k


def rows_of(prompts):
    return Dataset.from_dict({"prompt": prompts, "letter": ["e"] * len(prompts)})


SIDES = ("base", "trained")
ROWS = rows_of([f"say {word}" for word in "one two three four".split()])


def holds_letter(completion, row):
    return row["letter"] in completion


def frames(run_dir, side):
    """The samples of a side, sampled and greedy."""
    return {
        "greedy" in file.name: pd.read_parquet(file) for file in (Path(run_dir) / "samples").glob(f"{side}-*.parquet")
    }


@pytest.mark.parametrize("lora", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_the_numbers_are_the_verdicts_of_the_samples(run, lora):
    trained = run(lora=lora, max_steps=2)
    before = {name: value.clone() for name, value in trained.model.named_parameters()}
    result = evaluate(trained, ROWS, holds_letter, n=6, k=[1, 2], max_new_tokens=8)
    passk = load_run(trained.run_dir).passk
    assert [passk[side]["correct"] for side in SIDES] == [result[side]["correct"] for side in SIDES]
    assert passk["task"] == "own"
    assert passk["step"] == 2
    for side in SIDES:
        frame = frames(trained.run_dir, side)[False]
        assert [holds_letter(text, {"letter": "e"}) for text in frame["completion"]] == list(frame["correct"])
        counts = frame.groupby("prompt_id", sort=False)["correct"].sum()
        assert len(frame) == 24
        assert result[side]["pass@2"] == pytest.approx(sum(pass_at_k(6, int(c), 2) for c in counts) / 4)
    assert all(torch.equal(before[name], value) for name, value in trained.model.named_parameters())
    # Base is the model that training began from: its greedy completions are.
    model = AutoModelForCausalLM.from_pretrained(trained.base_name())
    greedy = frames(trained.run_dir, "base")[True]
    assert sorted(greedy["prompt"]) == sorted(ROWS["prompt"])
    for text, ids in zip(greedy["prompt"], greedy["ids"], strict=True):
        (prompt,) = trained.tokenize_prompts([text])
        expected = model.generate(torch.tensor([prompt]), max_new_tokens=8, do_sample=False)[0, len(prompt) :]
        assert list(ids) == expected[: len(ids)].tolist()
    again = evaluate(trained, ROWS, lambda completion, row: not holds_letter(completion, row), n=6, max_new_tokens=8)
    assert [6 - c for c in again["trained"]["correct"]] == result["trained"]["correct"]


@pytest.mark.parametrize("rows", [[{"prompt": "x"}], Dataset.from_dict({"question": ["x", "y"]})])
def test_rows_without_prompts_are_refused(make_trainer, rows):
    with pytest.raises(InputError, match=r"^rows must be a datasets\.Dataset with a column prompt$"):
        evaluate(make_trainer(), rows, holds_letter)


@pytest.mark.parametrize("lora", [pytest.param(True, marks=pytest.mark.slow), False])
def test_drift_is_that_of_a_plain_loop_over_its_samples(run, lora):
    trained = run(lora=lora, max_steps=3)
    before = {name: value.clone() for name, value in trained.model.named_parameters()}
    result = drift(trained, ROWS, holds_letter, samples=3, max_new_tokens=6)
    base, last = result["points"]
    assert (base["step"], base["kl_to_base"], last["step"]) == (0, pytest.approx(0.0, abs=1e-6), 3)
    (frame,) = frames(trained.run_dir, "trained").values()
    plain = AutoModelForCausalLM.from_pretrained(trained.base_name()).eval()
    policy = trained.model.eval()
    kl = []
    for prompt, ids in zip(frame["prompt"], frame["ids"], strict=True):
        (question,) = trained.tokenize_prompts([prompt])
        for place in range(len(ids)):
            so_far = torch.tensor([[*question, *ids[:place]]])
            with torch.no_grad():
                p, q = (torch.softmax(model(so_far).logits[0, -1], -1) for model in (policy, plain))
            kl.append(float((p * (p / q).log()).sum()))
    assert last["kl_to_base"] == pytest.approx(sum(kl) / len(kl), rel=1e-3)
    assert last["kl_to_base"] > 1e-6
    assert last["accuracy"] == sum(map(holds_letter, frame["completion"], [{"letter": "e"}] * 12)) / 12
    assert "reward" not in last  # which rows do not have
    assert all(torch.equal(before[name], value) for name, value in trained.model.named_parameters())
    assert load_run(trained.run_dir).drift["points"][1]["kl_to_base"] == last["kl_to_base"]


def test_without_a_verifier_nothing_is_judged(run):
    trained = run(max_steps=1)
    moved = drift(trained, ROWS, samples=4, max_new_tokens=8)
    assert not {"accuracy", "reward"} & set(moved["points"][1])
    assert [set(frame["correct"]) for frame in frames(trained.run_dir, "trained").values()] == [{None}]


def test_a_link_out_of_the_run_s_folder_is_refused(make_trainer, tmp_path):
    trainer = make_trainer()
    out = Path(trainer.args.output_dir)
    (out / "merges.txt").symlink_to(tmp_path / "mine")
    for measure in (evaluate, drift):
        with pytest.raises(InputError, match="merges.txt"):
            measure(trainer, ROWS, holds_letter)


def test_a_verdict_that_is_neither_true_nor_false_is_refused(make_trainer):
    """On the first row, and on a later one; text and a share of points count as true."""

    def grade_later(completion, row):
        return "False" if completion not in ("", "42") else False

    trainer = make_trainer()
    for verifier in (lambda completion, row: 0.5, grade_later):
        with pytest.raises((InputError, RunError), match="True"):
            evaluate(trainer, ROWS, verifier, n=2, k=[1], max_new_tokens=8)


SCRIPT = """
from datasets import Dataset
from peft import LoraConfig
from trl_prorl import ProRLConfig, ProRLTrainer, drift, embedded_model, evaluate


def rows(numbers):
    prompts = [[{"role": "user", "content": f"reverse {number}"}] for number in numbers]
    return Dataset.from_dict({"prompt": prompts, "digit": [str(number * 7 % 10) for number in numbers]})


def verify(completion, row):
    return row["digit"] in completion


def reward(completions, digit, **columns):
    return [float(verify(c[0]["content"], {"digit": d})) for c, d in zip(completions, digit)]


def held_out_rows():
    return rows(range(11, 91, 4))


if __name__ == "__main__":
    args = ProRLConfig("runs/mine", max_steps=4, per_device_train_batch_size=8, num_generations=4, use_cpu=True,
                       max_completion_length=6, bf16=False, save_strategy="steps", save_steps=1, report_to="none")
    trainer = ProRLTrainer(embedded_model("embedded"), reward, args, rows(range(10, 90, 4)), peft_config=LoraConfig())
    trainer.train()
    trainer.save_model()
    evaluate(trainer, held_out_rows(), verify, n=4)
    drift(trainer, held_out_rows(), verify, samples=2)
"""


@pytest.fixture(scope="module")
def of_script(forks, tmp_path_factory):
    """The folder in which a script has trained and measured `runs/mine`."""
    folder = tmp_path_factory.mktemp("script")
    (folder / "mine.py").write_text(SCRIPT)
    status, written = forks.run("mine.py", cwd=folder)
    assert status == 0, written[-3000:]
    return folder


@pytest.fixture
def command(forks, of_script, tmp_path):
    """A function that runs `trl-prorl` beside a copy of the script and its run: exit status, and what it wrote."""
    shutil.copytree(of_script, tmp_path, dirs_exist_ok=True)
    return lambda line: forks.run("-m", "trl_prorl", *line.split(), cwd=tmp_path, env={"COLUMNS": "200"})


def measured(folder, name):
    return json.loads((folder / "runs" / "mine" / name).read_text())


def test_the_commands_measure_what_the_script_measured(command, tmp_path):
    own = measured(tmp_path, "passk.json")
    status, written = command("passk --run runs/mine --plugin mine.py --n 4 --no-greedy")
    assert status == 0, written[-3000:]
    again = measured(tmp_path, "passk.json")
    same = ("prompts", "n", "seed", "task", "prompt_ids", "step")
    assert [again[key] for key in same] == [own[key] for key in same]
    assert again["base"]["correct"] == own["base"]["correct"]
    assert 0 < sum(own["base"]["correct"]) < 80
    assert (own["in_training"], again["in_training"]) == (0, None)  # the script alone has the training set
    own = measured(tmp_path, "drift.json")
    shutil.rmtree(tmp_path / "runs" / "mine" / "samples")  # a script draws its own
    status, written = command("drift --run runs/mine --plugin mine.py --samples 2 --checkpoints all")
    assert status == 0, written[-3000:]
    again = measured(tmp_path, "drift.json")
    assert [point["step"] for point in again["points"]] == [0, 1, 2, 3, 4]
    assert again["points"][0]["accuracy"] == own["points"][0]["accuracy"]
    assert again["points"][0]["entropy"] == pytest.approx(own["points"][0]["entropy"])
    assert again.pop("weights") and again.pop("grader")  # a script has both in memory
    assert {**again, "points": None} == {**own, "points": None}


class Processor(ProcessorMixin):
    """A processor of a model that sees: without images it does what its tokenizer does."""

    def __init__(self, tokenizer, chat_template=None):
        super().__init__(tokenizer, chat_template=chat_template)


# As SmolVLM's: a content that is text, not a list of parts, is left out.
OF_PARTS = (
    "{% for message in messages %}{% for part in message['content'] %}{% if part['type'] == 'text' %}"
    "{{ message['role'] + ': ' + part['text'] }}{% endif %}{% endfor %}{% endfor %}{{ extra or '>' }}"
)
MESSAGES = [[{"role": "system", "content": "be good"}, {"role": "user", "content": f"say {i}"}] for i in range(2)]
PARTS = [[{"role": "user", "content": [{"type": "text", "text": f"say {i}"}]}] for i in range(2)]


@pytest.mark.parametrize("prompts", [MESSAGES, PARTS, ["say one", "say two"]], ids=["messages", "parts", "text"])
def test_a_processor_s_prompts_are_those_that_trl_trains(make_trainer, tiny_model, prompts):
    processor = Processor(AutoTokenizer.from_pretrained(tiny_model), chat_template=OF_PARTS)
    given = {"processing_class": processor}
    model = AutoModelForCausalLM.from_pretrained(tiny_model)
    model.config.image_token_id = 5  # as that of a model that sees
    keys = {"columns": {"prompt": prompts * 8}, "chat_template_kwargs": {"extra": "!"}}
    trainer = make_trainer(model=model, trainer_kwargs=given, **keys)
    seen = []
    model.get_input_embeddings().register_forward_pre_hook(lambda _, args: seen.extend(args[0].tolist()))
    wanted = [processor.tokenizer.decode(ids) for ids in GRPOTrainer._tokenize_prompts(trainer, prompts)[0]]
    assert all("say" in text for text in wanted)
    for measure, extra in ((evaluate, {"n": 1, "k": [1], "greedy": False}), (drift, {"samples": 1})):
        seen.clear()
        measure(trainer, rows_of(prompts), holds_letter, max_new_tokens=2, **extra)
        # Of a prompt with its padding and a completion, or of one token of a completion.
        texts = [processor.tokenizer.decode(ids, skip_special_tokens=True) for ids in seen if len(ids) > 2]
        assert {one for one in wanted for text in texts if text.startswith(one)} == set(wanted)
        assert all(text.startswith(tuple(wanted)) for text in texts)
    shown = {prompt for frame in frames(trainer.run_dir, "trained").values() for prompt in frame["prompt"]}
    assert {prompt.split()[0] for prompt in shown} == {"say"}
