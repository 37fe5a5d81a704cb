"""A task of several turns: the same tokens in training and in held-out sampling, and a loss on the model's alone."""

import random
import re
from types import SimpleNamespace

import pytest
import torch
from run_record import read_rows, without_times
from tiny_run import record_results
from transformers import AutoTokenizer
from trl import GRPOTrainer

from trl_prorl.embedded.shipped import embedded_model
from trl_prorl.errors import InputError, RewardError
from trl_prorl.eval.passk import evaluate
from trl_prorl.eval.samples.sampling import SamplingSettings, prompt_ids, sample
from trl_prorl.extras.turns import prepare_tokenizer, reply_ids
from trl_prorl.launch.recipe import parse_recipe
from trl_prorl.tasks import get_task
from trl_prorl.tasks.guess import Guess
from trl_prorl.train import build


MAX_TOKENS = 48
TOLD = {reply: f"<|user|>{reply}<|assistant|>" for reply in ("guess", *(f"guess > {n}" for n in "1234"), "guess < 7")}
OVER_1, OVER_2, OVER_3, OVER_4, UNDER_7 = (TOLD[f"guess {what}"] for what in ("> 1", "> 2", "> 3", "> 4", "< 7"))
# What a model says, turn by turn, to a game whose number is 5; what is in the completion, by who wrote it; its text.
GAMES = {
    "won at once": (["5"], ["5<|end|>"], "5"),
    "won": (["4", "7", "5"], ["4<|end|>", OVER_4, "7<|end|>", UNDER_7, "5<|end|>"], "4\nguess > 4\n7\nguess < 7\n5"),
    "lost": (
        ["1", "2", "3", "4", "5"],
        ["1<|end|>", OVER_1, "2<|end|>", OVER_2, "3<|end|>", OVER_3, "4<|end|>"],
        "1\nguess > 1\n2\nguess > 2\n3\nguess > 3\n4",
    ),
    "no digit": (["x\n y", "5"], ["x\n y<|end|>", TOLD["guess"], "5<|end|>"], "x y\nguess\n5"),
    "a marker": (["4<|user|>5", "5"], ["4<|user|>5<|end|>", OVER_4, "5<|end|>"], "4<|user|>5\nguess > 4\n5"),
    "nothing said": ([""], ["<|end|>"], ""),
    "nothing more said": (["4", ""], ["4<|end|>", OVER_4, "<|end|>"], "4\nguess > 4\n"),
    "cut in its first turn": (["4" * 60], ["4" * MAX_TOKENS], "4" * MAX_TOKENS),
    "cut in its second": (["4", "7" * 60], ["4<|end|>", OVER_4, "7" * 35], "4\nguess > 4\n" + "7" * 35),
    "no room for a turn": (["4" * 36, "5"], ["4" * 36 + "<|end|>", OVER_4], "4" * 36 + "\nguess > 4"),
    "no room for a reply": (["4" * 37, "5"], ["4" * 37 + "<|end|>"], "4" * 37),
}
KEYS = {
    "task": "guess",
    "task_level": 8,
    "model_name_or_path": "embedded",
    "train_rows": 64,
    "max_steps": 4,
    "per_device_train_batch_size": 32,
    "num_generations": 4,
    "num_iterations": 2,
    "seed": 1,
    "max_completion_length": MAX_TOKENS,
    "learning_rate": 1e-3,
    "use_peft": True,
    "lora_target_modules": "all-linear",
    "use_cpu": True,
    "bf16": False,
    "gradient_checkpointing": False,
    "disable_tqdm": True,
    "report_to": "none",
    "save_strategy": "no",
    "reuse_old_logps": True,
    "lora_dropout": 0.0,
}


def recipe(out, **keys):
    given = KEYS | {"output_dir": str(out)} | keys
    return parse_recipe([word for key, value in given.items() for word in (f"--{key}", str(value).lower())])


@pytest.fixture
def made(tmp_path):
    """A function that makes the trainer of a recipe, in whose place of sampling `say` may speak."""

    def make(say=None, out="run", **keys):
        trainer, resume = build(*recipe(tmp_path / out, **keys))
        if say is not None:
            trainer._generate_single_turn = lambda prompts, *rest, **named: ([say(ids) for ids in prompts], None)
        return trainer, resume

    return make


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(embedded_model())


def speaker(tokenizer, turns):
    """A turn's tokens after those of a game so far; `turns` says what: the game's name, turns so far, and text."""

    def say(ids, most=MAX_TOKENS):
        text = tokenizer.decode(ids)
        name = re.search(r"guess (\d+)", text)[1]
        place = text.count("<|end|>")
        return tokenizer.encode(turns(name, place, text) + "<|end|>", add_special_tokens=False)[:most]

    return say


class Scripted(torch.nn.Module):
    """In the place of a model: says what a speaker says."""

    def __init__(self, say):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.say = say
        self.generation_config = type("config", (), {"eos_token_id": None})()

    def get_output_embeddings(self):
        return None

    def generate(self, input_ids, attention_mask, max_new_tokens, pad_token_id, num_return_sequences, **settings):
        prompts = [row[mask.bool()].tolist() for row, mask in zip(input_ids, attention_mask, strict=True)]
        said = [self.say(ids, max_new_tokens) for ids in prompts for _ in range(num_return_sequences)]
        width = max(map(len, said))
        said = torch.tensor([ids + [pad_token_id] * (width - len(ids)) for ids in said])
        return torch.cat([input_ids.repeat_interleave(num_return_sequences, dim=0), said], dim=1)


def by_hand(tokenizer):
    """Rows of the games above, and a speaker that plays each."""
    rows = get_task("guess", level=8).rows("train", len(GAMES)).to_list()
    rows = [row | {"answer": "5"} for row in rows]
    scripts = {row["prompt"][0]["content"].split()[1]: game[0] for row, game in zip(rows, GAMES.values(), strict=True)}
    return rows, speaker(tokenizer, lambda name, place, text: scripts[name][min(place, len(scripts[name]) - 1)])


def test_games_in_training_token_by_token(made, tokenizer):
    rows, say = by_hand(tokenizer)
    trainer, _ = made(say)
    sampled = trainer.sample_rows(rows)
    for place, (name, (_, parts, text)) in enumerate(GAMES.items()):
        of_parts = [tokenizer.encode(part, add_special_tokens=False) for part in parts]
        mask = [number % 2 == 0 for number, part in enumerate(of_parts) for _ in part]
        for row in range(4 * place, 4 * place + 4):
            length = int(sampled.batch["completion_mask"][row].sum())
            ids = sampled.batch["completion_ids"][row, :length].tolist()
            assert sampled.ids[row] == ids == sum(of_parts, []), name
            assert sampled.batch["tool_mask"][row, :length].bool().tolist() == mask, name
            assert sampled.rewards[row] == get_task("guess").verify(text, rows[place]) == (text.endswith("5"))
            assert sampled.cut[row] == ("cut" in name or name == "no room for a turn")


def test_held_out_games_have_the_tokens_of_training(made, tokenizer):
    rows, say = by_hand(tokenizer)
    trainer, _ = made(say)
    sampled = trainer.sample_rows(rows)
    task = get_task("guess", level=8)
    prompts = trainer.tokenize_prompts([row["prompt"] for row in rows])
    own = AutoTokenizer.from_pretrained(embedded_model())
    drawn = sample(Scripted(say), own, task, rows, 2, SamplingSettings(max_new_tokens=MAX_TOKENS))
    assert prompt_ids(own, rows) == prompts == prompt_ids(tokenizer, rows)
    for place, (samples, (_, _, text)) in enumerate(zip(drawn, GAMES.values(), strict=True)):
        for one in samples:
            assert one.ids == sampled.ids[4 * place]
            assert one.truncated == sampled.cut[4 * place]
            assert one.text == text
            assert one.correct == bool(sampled.rewards[4 * place])


@pytest.mark.parametrize(
    ("returned", "said"), [(None, rf"KeyError: 'secret' \({re.escape(__file__)}, line \d+\)"), (5, "returned 5")]
)
def test_a_reply_that_fails_stops_training_and_evaluation(made, tokenizer, monkeypatch, returned, said):
    def reply(self, turns, row):
        return {}["secret"] if returned is None else returned

    monkeypatch.setattr(Guess, "reply", reply)
    trainer, _ = made(speaker(tokenizer, lambda *_: "4"), eval_strategy="steps", eval_rows=8)
    for start in (trainer.train, trainer.evaluate):
        with pytest.raises(RewardError, match=rf"^reply of task 'guess' .*{said}.* for the prompt 'guess \d+'"):
            start()


@pytest.mark.parametrize("reply", ["guess > 4", "guess", "", " <|end|> "])
def test_the_tokens_of_a_reply_are_trl_s(made, reply):
    trainer, _ = made()
    theirs = trainer._get_tool_suffix_ids([{"role": "tool", "name": "take_turn", "content": reply}])
    assert reply_ids(trainer.processing_class, reply) == theirs


def guesses(tokenizer):
    """A speaker that draws its guesses, of one to three digits."""
    draw = random.Random(3)
    return speaker(tokenizer, lambda name, place, text: "".join(draw.choices("0123456789", k=draw.randint(1, 3))))


@pytest.mark.parametrize(
    "keys, references", [({"beta_old": 1.0}, 0), ({"beta": 0.5, "ref_reset_every": 2}, 2), ({"beta_base": 0.2}, 2)]
)
def test_packed_games_train_as_padded_ones(made, tokenizer, weights, largest_difference, keys, references):
    trainers = []
    for pack in ("off", "on"):
        # By SGD: Adam would turn rounding noise of a gradient that is nearly 0 into an update of full size.
        trainer, _ = made(
            guesses(tokenizer), pack, pack_groups=pack, max_steps=3, optim="sgd", learning_rate=1, **keys
        )
        before = weights(trainer)
        trainer.made = record_results(trainer, "_generate_and_score_completions")
        trainer.train()
        trainers.append(trainer)
        moved = max((value - before[name]).abs().max() for name, value in weights(trainer).items())
        assert moved > 1e-2
    padded, packed = trainers
    assert packed.acceleration.packs
    assert not padded.acceleration.packs
    assert largest_difference(padded, packed) < 1e-5
    for rows, trainer in ((read_rows(trainer), trainer) for trainer in trainers):
        assert sum(row["ref_forward_calls"] + row["base_forward_calls"] for row in rows) == references
        own = [int((batch["completion_mask"] * batch["tool_mask"]).sum()) for batch in trainer.made]
        assert [row["tokens_generated"] for row in rows if row["tokens_generated"]] == own
        assert own[0] < int(trainer.made[0]["completion_mask"].sum())


def test_a_resumed_run_plays_the_same_games(made, weights):
    keys = {"save_strategy": "steps", "save_steps": 2, "beta_old": 1.0}
    whole, _ = made(out="whole", **keys)
    whole.train()
    resumed, resume = made(resume_from_checkpoint=f"{whole.args.output_dir}/checkpoint-2", **keys)
    resumed.train(resume_from_checkpoint=resume)
    first = weights(whole)
    second = weights(resumed)
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert without_times(read_rows(resumed)) == without_times(read_rows(whole)[2:])


@pytest.mark.parametrize(
    "keys, message",
    [
        ({"thinking_budget": 8}, "thinking_budget=8 .*turn"),
        ({"max_tool_calling_iterations": 2}, "max_tool_calling_iterations=2 .*turn"),
    ],
)
def test_keys_of_one_turn_are_refused_before_a_model_is_loaded(tmp_path, monkeypatch, keys, message):
    monkeypatch.setattr(GRPOTrainer, "__init__", lambda *args, **named: pytest.fail("loaded"))
    with pytest.raises(ValueError, match=message):
        build(*recipe(tmp_path, **keys))


def test_no_tool_is_described_in_a_prompt():
    own = AutoTokenizer.from_pretrained(embedded_model())
    own.chat_template = "{{ tools | tojson if tools }}" + own.chat_template
    messages = [{"role": "user", "content": "guess 12345"}]
    tools = [{"type": "function", "function": {"name": "guess_of", "parameters": {}}}]
    described = own.apply_chat_template(messages, tools=tools, tokenize=False)
    assert "guess_of" in described
    assert prepare_tokenizer(own).apply_chat_template(messages, tools=tools, tokenize=False) == "<|user|>guess 12345"
    assert prepare_tokenizer(own).chat_template.count("namespace") == 1  # a second time changes nothing


@pytest.mark.parametrize("template", [None, "{{ messages[0]['content'] }}"])
def test_a_base_that_cannot_chat_is_refused(template):
    tokenizer = AutoTokenizer.from_pretrained(embedded_model())
    tokenizer.chat_template = template
    with pytest.raises(ValueError, match="multi-turn"):
        prepare_tokenizer(tokenizer)


def test_an_evaluation_of_one_turn_refuses_games():
    trainer = SimpleNamespace(accelerator=SimpleNamespace(num_processes=1), environment_factories={None: object})
    with pytest.raises(InputError, match="^environment_factory"):
        evaluate(trainer, [], bool)
