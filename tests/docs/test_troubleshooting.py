"""docs/troubleshooting.md quotes what the code prints, and names keys that exist; so do other pages of keys."""

import ast
import dataclasses
import re

import pytest
from doc_pages import ROOT, blocks
from trl import ModelConfig

from trl_prorl import ProRLConfig
from trl_prorl.objective.advantages import ESTIMATORS
from trl_prorl.record.keys import EVALUATIONS, EVENTS, METRICS
from trl_prorl.resets.triggers import CONFIGURED
from trl_prorl.train import TaskArguments


PAGE = (ROOT / "docs" / "troubleshooting.md").read_text()
QUOTED = [" ".join(block.text.split()) for block in blocks(PAGE) if block.language == "text"]
ANY = "\0"


def template(node: ast.AST) -> str | None:
    """The text of a string expression, with a mark for what is filled in."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return re.sub(r"%(s|d|r|\.\d+g)|{[\w.!]+}", ANY, node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(template(part) for part in node.values)
    if isinstance(node, ast.FormattedValue):
        return ANY
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left = template(node.left)
        right = template(node.right)
        return None if left is None and right is None else (left or ANY) + (right or ANY)
    return None


def templates() -> list[str]:
    """Every text that the code can print."""
    found = []
    for package in ("trl_prorl", "tasks", "eval"):
        for file in sorted((ROOT / package).rglob("*.py")):
            tree = ast.parse(file.read_text())
            # A name that stands for a text, such as CURE, inside another one.
            texts = {
                node.targets[0].id: template(node.value)
                for node in tree.body
                if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
            }
            for node in ast.walk(tree):
                if isinstance(node, ast.FormattedValue) and isinstance(node.value, ast.Name):
                    node.format_spec = None
                    text = texts.get(node.value.id)
                    if text:
                        node.__class__ = ast.Constant
                        node.value = text
            found += [text for node in ast.walk(tree) if (text := template(node))]
    return [re.sub(r"\s+", " ", text) for text in found]


TEMPLATES = templates()


@pytest.mark.parametrize("message", QUOTED, ids=lambda message: message[:40])
def test_every_message_is_one_of_the_code(message):
    wanted = message.replace("…", ANY)
    assert len(re.sub(f"[{ANY} ]", "", wanted)) >= 12, "too little to be sure of"
    assert any(wanted in text for text in TEMPLATES), message


def test_a_message_that_is_not_of_the_code_is_found_out():
    assert any("is never applied: nothing requests a reset." in text for text in TEMPLATES)
    assert not any("is never used: nothing requests a reset." in text for text in TEMPLATES)
    assert len(QUOTED) >= 20
    assert len(TEMPLATES) > 500  # there is something to check


KNOWN = {field.name for cls in (ProRLConfig, TaskArguments, ModelConfig) for field in dataclasses.fields(cls)}
KNOWN |= set(METRICS) | set(EVENTS) | set(EVALUATIONS) | set(ESTIMATORS)
KNOWN |= {reason for trigger in CONFIGURED for reason in trigger.reasons}
NOT_KEYS = set("allow_weak_sandbox response_template reward generate backward completions prompts".split())
NOT_KEYS |= set("enable_thinking save_model save_pretrained init_lora_weights peft_config".split())
NOT_KEYS |= {"packed_logps", "mixed_precision", "config_file"}  # a function in a traceback, and accelerate launch's


@pytest.mark.parametrize("page", ["troubleshooting.md", "howto-model.md", "methods.md"])
def test_every_key_that_is_named_exists(page):
    text = (ROOT / "docs" / page).read_text()
    yaml_keys = re.findall(r"`(?:--)?([a-z][a-z_]+)(?::? [^`]*)?`", text)
    lines = [line for block in blocks(text) if block.language == "yaml" for line in block.text.split("\n")]
    yaml_keys += [line.split(":")[0] for line in lines if ":" in line]
    named = {key for key in yaml_keys if "_" in key}
    assert len(named) > 3
    assert named - KNOWN - NOT_KEYS == set()
