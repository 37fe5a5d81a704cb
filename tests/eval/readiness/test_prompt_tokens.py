"""What a chat template does to prompts, from TRL's trainer as a user makes it."""

import pytest
from transformers import AutoTokenizer
from trl import GRPOTrainer

from trl_prorl.eval.preflight import preflight
from trl_prorl.eval.readiness.finding import LOOK, STOP


SYSTEM_ALONE = (
    "{% for message in messages %}{% if message['role'] == 'system' %}{{ message['content'] }}{% endif %}{% endfor %}a"
)
CONTENT = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
PARTS = {"prompt": [[{"role": "user", "content": [{"type": "text", "text": f"say {row}"}]}] for row in range(16)]}


@pytest.mark.parametrize(
    ("template", "columns", "what", "level"),
    [
        (SYSTEM_ALONE, {}, "prompts that differ as tokens", STOP),
        ("{{ raise_exception('no such role') }}", {}, "chat template", STOP),
        ("{{ messages[0]['content'] }", {}, "chat template", STOP),
        (CONTENT, PARTS, "chat template", STOP),
        ("{{ strftime_now('%d %b %Y') }}" + CONTENT, {}, "chat template", LOOK),
        (CONTENT, {}, None, None),
    ],
)
def test_a_template_is_told(make_trainer, tiny_model, template, columns, what, level):
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    tokenizer.chat_template = template
    trainer = make_trainer(GRPOTrainer, columns=columns, trainer_kwargs={"processing_class": tokenizer})
    findings = {finding.what: finding for finding in preflight(trainer, prompts=4)}
    told = {
        name: findings[name].level for name in ("prompts that differ as tokens", "chat template") if name in findings
    }
    assert {name: found for name, found in told.items() if found != "fine"} == ({what: level} if what else {})
