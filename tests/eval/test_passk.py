import json
import shutil

import pytest
import torch
import yaml
from datasets import Dataset
from peft import LoraConfig, PeftModel, get_peft_model
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM, set_seed

from eval import passk
from tasks.base import Task


CHARACTERS = "0123456789abcdef"
NEW_TOKENS = 6


class ParityTask(Task):
    """Correct is a completion whose number of even digits has the row's parity: about half of all completions."""

    def __init__(self):
        self.seen = []

    def rows(self, split, n, seed=0):
        prompts = ["7" * (1 + i % 5) + split[0] + str(seed) for i in range(n)]
        return Dataset.from_dict(
            {"prompt": [[{"role": "user", "content": p}] for p in prompts], "answer": [i % 2 for i in range(n)]}
        )

    def verify(self, completion, row):
        self.seen.append(completion)
        return sum(character in "02468" for character in completion) % 2 == row["answer"]


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Matrices this small only lose by threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def task(monkeypatch):
    task = ParityTask()
    monkeypatch.setattr("tasks.registry.get_task", lambda name, **options: task)
    return task


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """A random two-layer model and a tokenizer with one token per character."""
    path = tmp_path_factory.mktemp("base")
    vocabulary = {token: i for i, token in enumerate(["<pad>", "<eos>", "<unk>", *CHARACTERS, "t", ">"])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), behavior="isolated")
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        eos_token="<eos>",
        unk_token="<unk>",
        chat_template="{{ messages[0]['content'] }}{% if add_generation_prompt %}>{% endif %}",
    ).save_pretrained(path)
    set_seed(0)
    config = Qwen2Config(
        vocab_size=len(vocabulary),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        initializer_range=0.3,
        bos_token_id=None,
        eos_token_id=1,
        pad_token_id=0,
    )
    Qwen2ForCausalLM(config).save_pretrained(path)
    return path


@pytest.fixture
def run_dir(base, tmp_path):
    """A finished run with a LoRA adapter that differs from base."""
    path = tmp_path / "A"
    path.mkdir()
    passk.load_tokenizer(base).save_pretrained(path)
    set_seed(1)
    lora = LoraConfig(r=4, target_modules=["q_proj", "down_proj"], init_lora_weights=False)
    get_peft_model(AutoModelForCausalLM.from_pretrained(base), lora).save_pretrained(path)
    config = {
        "model_name_or_path": str(base),
        "task": "parity",
        "temperature": 0.7,
        "max_completion_length": NEW_TOKENS,
    }
    (path / "config.yaml").write_text(yaml.safe_dump(config))
    return path


def greedy_by_hand(model, tokenizer, text):
    """One prompt, no padding, no cache, no `generate`."""
    tokens = tokenizer(text, return_tensors="pt")["input_ids"]
    length = tokens.shape[1]
    for _ in range(NEW_TOKENS):
        token = model(input_ids=tokens).logits[0, -1].argmax()
        if token == tokenizer.eos_token_id:
            break
        tokens = torch.cat([tokens, token.view(1, 1)], dim=1)
    return tokenizer.decode(tokens[0, length:], skip_special_tokens=True)


def test_greedy_is_what_each_model_says_alone(base, run_dir, task):
    """Prompts of several lengths in one batch, adapter and all, against a plain loop over single prompts."""
    assert passk.main(["--run", str(run_dir), "--prompts", "5", "--greedy"]) == 0
    result = json.loads((run_dir / "passk.json").read_text())
    seen, task.seen = task.seen, []
    tokenizer, rows = passk.load_tokenizer(base), task.rows("test", 5)
    loaders = {
        "base": lambda: AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32),
        "trained": lambda: PeftModel.from_pretrained(
            AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32), run_dir
        ),
    }
    completions = []
    for side, load in loaders.items():
        model = load().eval()
        with torch.no_grad():
            said = [greedy_by_hand(model, tokenizer, row["prompt"][0]["content"] + ">") for row in rows]
        assert result[side]["correct"] == [int(task.verify(text, row)) for text, row in zip(said, rows, strict=True)]
        completions += said
    assert seen == completions
    assert completions[:5] != completions[5:]
    assert (result["n"], result["k"], result["temperature"]) == (1, [1], 0.0)


def test_cli_writes_what_it_measured(run_dir, task, capsys):
    arguments = ["--run", str(run_dir), "--prompts", "6", "--n", "8", "--k", "1", "4", "--batch-size", "20"]
    assert passk.main(arguments) == 0
    first = (run_dir / "passk.json").read_text()
    result = json.loads(first)
    settings = {key: value for key, value in result.items() if key not in ("base", "trained")}
    assert settings == {
        "split": "test",
        "prompts": 6,
        "n": 8,
        "k": [1, 4],
        "temperature": 0.7,
        "seed": 0,
        "task": "parity",
        "level": None,
    }
    for side, verdicts in (("base", task.seen[:48]), ("trained", task.seen[48:])):
        rows, task.seen = task.rows("test", 6), []
        counts = [sum(task.verify(text, rows[i]) for text in verdicts[8 * i : 8 * i + 8]) for i in range(6)]
        assert result[side]["correct"] == counts
        assert result[side]["pass@1"] == pytest.approx(sum(counts) / 48)
        assert result[side]["interval@1"][0] <= result[side]["pass@1"] <= result[side]["interval@1"][1]
        assert result[side]["pass@4"] >= result[side]["pass@1"]
    assert "pass@k of" in capsys.readouterr().out
    assert not list(run_dir.glob("*.tmp"))

    assert passk.main(arguments) == 0
    assert (run_dir / "passk.json").read_text() == first
    assert passk.main([*arguments, "--seed", "1"]) == 0
    assert json.loads((run_dir / "passk.json").read_text())["base"]["correct"] != result["base"]["correct"]


def test_base_is_evaluated_once_for_runs_that_share_it(run_dir, task, tmp_path, monkeypatch):
    shutil.copytree(run_dir, tmp_path / "B")
    other = tmp_path / "longer"
    shutil.copytree(run_dir, other)
    config = yaml.safe_load((other / "config.yaml").read_text())
    (other / "config.yaml").write_text(yaml.safe_dump({**config, "max_completion_length": 2}))
    labels = []
    original = passk.sample_correct

    def spy(*args, description, **kwargs):
        labels.append(description)
        return original(*args, description=description, **kwargs)

    monkeypatch.setattr(passk, "sample_correct", spy)
    runs = ["--run", str(run_dir), "--run", str(tmp_path / "B"), "--run", str(other)]
    assert passk.main([*runs, "--prompts", "3", "--n", "2", "--k", "1"]) == 0
    assert labels == ["A: base", "A: trained", "B: trained", "longer: base", "longer: trained"]
    assert (run_dir / "passk.json").read_text() == (tmp_path / "B" / "passk.json").read_text()


def test_full_model(run_dir, base, task):
    for file in run_dir.glob("adapter_*"):
        file.unlink()
    AutoModelForCausalLM.from_pretrained(base).save_pretrained(run_dir)
    assert passk.main(["--run", str(run_dir), "--prompts", "4", "--n", "4", "--k", "1"]) == 0
    result = json.loads((run_dir / "passk.json").read_text())
    # The trained model is base here, and each is sampled from the same seed.
    assert result["trained"] == result["base"]


@pytest.mark.parametrize("setting", [{"top_k": 1}, {"top_p": 0.01}])
def test_sampling_ignores_the_model_s_own_generation_config(base, task, setting):
    model, tokenizer = passk.load_model(base), passk.load_tokenizer(base)
    model.generation_config.update(do_sample=True, **setting)
    set_seed(0)
    passk.sample_correct(model, tokenizer, task, task.rows("test", 1), 32, max_new_tokens=NEW_TOKENS)
    assert len(set(task.seen)) > 16


def test_every_sample_belongs_to_its_prompt(base, task):
    """At a temperature this low all samples of a prompt are its greedy completion, penalties of the model's aside."""
    model, tokenizer, rows = passk.load_model(base), passk.load_tokenizer(base), task.rows("test", 5)
    model.generation_config.update(repetition_penalty=50.0)
    correct = passk.sample_correct(
        model, tokenizer, task, rows, 3, temperature=1e-4, max_new_tokens=NEW_TOKENS, batch_size=7
    )
    with torch.no_grad():
        said = [greedy_by_hand(model, tokenizer, row["prompt"][0]["content"] + ">") for row in rows]
    assert len(set(said)) > 1
    assert task.seen == [text for text in said for _ in range(3)]
    assert [len(samples) for samples in correct] == [3] * 5


def test_every_declared_token_stops(base):
    model, tokenizer = passk.load_model(base), passk.load_tokenizer(base)
    model.generation_config.eos_token_id = [5, 1]
    assert passk.stop_token_ids(model, tokenizer) == [1, 5]
    model.generation_config.eos_token_id = None
    assert passk.stop_token_ids(model, tokenizer) == [1]


def test_level_options_and_task_seed_reach_the_task(run_dir, monkeypatch):
    asked = []

    class Recorder(ParityTask):
        def rows(self, split, n, seed=0):
            asked.append((split, n, seed))
            return super().rows(split, n, seed)

    def get_task(name, **options):
        asked.append((name, options))
        return Recorder()

    monkeypatch.setattr("tasks.registry.get_task", get_task)
    config = yaml.safe_load((run_dir / "config.yaml").read_text())
    config |= {"task_level": 4, "task_options": {"base": 2}, "task_seed": 7, "dataset_name": "some/where"}
    (run_dir / "config.yaml").write_text(yaml.safe_dump(config))
    arguments = ["--run", str(run_dir), "--prompts", "2", "--n", "1", "--split", "validation"]
    assert passk.main(arguments) == 0
    assert ("parity", {"level": 4, "base": 2, "path": "some/where"}) in asked
    assert ("validation", 2, 7) in asked
    assert json.loads((run_dir / "passk.json").read_text())["level"] == 4


def break_config(folder):
    (folder / "config.yaml").unlink()


def break_model(folder):
    (folder / "adapter_config.json").unlink()


def break_task(folder):
    config = yaml.safe_load((folder / "config.yaml").read_text())
    del config["task"]
    (folder / "config.yaml").write_text(yaml.safe_dump(config))


def break_nothing(folder):
    pass


@pytest.mark.parametrize(
    ("damage", "arguments", "named"),
    [
        (break_config, [], ["config.yaml", "is missing", "give a run folder"]),
        (break_model, [], ["no trained model", "let the run finish"]),
        (break_task, [], ["has no task", "add"]),
        (break_nothing, ["--n", "4", "--k", "1", "8"], ["--k 8", "--n 4", "lower k"]),
        (break_nothing, ["--n", "0"], ["--n 0", "at least 1"]),
        (break_nothing, ["--prompts", "1"], ["--prompts 1", "at least 2"]),
        (break_nothing, ["--temperature", "0"], ["--temperature 0", "--greedy"]),
        (break_nothing, ["--greedy", "--n", "4"], ["--n 4", "--greedy"]),
        (break_nothing, ["--run", "nowhere"], ["'nowhere'", "does not exist"]),
    ],
)
def test_bad_input_is_one_line(run_dir, task, capsys, damage, arguments, named):
    damage(run_dir)
    assert passk.main(["--run", str(run_dir), *arguments]) == 2
    message = capsys.readouterr().err
    assert message.count("\n") == 1
    for part in named:
        assert part in message
    assert not (run_dir / "passk.json").exists()
    assert not task.seen


def test_an_unknown_task_is_one_line(run_dir, monkeypatch, capsys):
    def get_task(name, **options):
        raise ValueError(f"name={name!r} is not a task")

    monkeypatch.setattr("tasks.registry.get_task", get_task)
    assert passk.main(["--run", str(run_dir)]) == 2
    assert "'parity' is not a task" in capsys.readouterr().err


def test_a_reader_never_sees_half_a_file(tmp_path, monkeypatch):
    path = tmp_path / "passk.json"
    passk.write_json(path, {"n": 1})

    def interrupt(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr("os.replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        passk.write_json(path, {"n": 2})
    assert json.loads(path.read_text()) == {"n": 1}
