"""A rollout with calls of a tool: what the page says of its masks is enough to score it again."""

import torch
from exchange import EveryUpdate
from test_packing_tools import KEYS, add, rewarded, speaks, tools_model  # noqa: F401
from transformers import AutoModelForCausalLM, AutoTokenizer

from trl_prorl.interchange import Rollout, read


def test_a_tool_s_answer_is_context_and_no_part_of_the_loss(make_trainer, tools_model, tmp_path):  # noqa: F811
    """
    The reference of a new LoRA is the model itself, so that its log-probabilities come from the files and the model:
    every completion token up to the last with mask 1 is attended to, a tool's answer too.
    """
    tokenizer = AutoTokenizer.from_pretrained(tools_model)
    callback = EveryUpdate(tmp_path / "exchange")
    kwargs = {"tools": [add], "processing_class": tokenizer, "callbacks": [callback]}
    keys = KEYS | {"max_steps": 1, "beta": 0.2, "temperature": 0.7}
    trainer = speaks(make_trainer(model=tools_model, reward=rewarded, trainer_kwargs=kwargs, **keys))
    callback.trainer = trainer
    trainer.train()
    rollout = read(Rollout, callback.folder / "1")
    mask = rollout.completion_mask.bool()
    reached = mask.flip(1).cumsum(1).flip(1) > 0
    answers = reached & ~mask
    assert answers.any() and "<tool_response>" in tokenizer.decode(rollout.completion_ids[answers])
    model = AutoModelForCausalLM.from_pretrained(tools_model)
    ids = torch.cat([rollout.prompt_ids, rollout.completion_ids], dim=1)

    def scored(attended):
        with torch.no_grad():
            logits = model(ids, attention_mask=torch.cat([rollout.prompt_mask, attended], dim=1)).logits / 0.7
        return logits.log_softmax(-1)[:, :-1].gather(2, ids[:, 1:, None])[:, -mask.shape[1] :, 0][mask]

    torch.testing.assert_close(scored(reached), rollout.logp_ref[mask], rtol=1e-4, atol=1e-4)
    assert (scored(mask) - rollout.logp_ref[mask]).abs().max() > 0.1
