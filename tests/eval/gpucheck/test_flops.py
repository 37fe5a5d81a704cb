"""Operations by hand."""

import pytest

from eval.gpucheck import flops
from eval.stepcost import shapes


@pytest.fixture(autouse=True)
def two_layers(monkeypatch):
    """Hidden 4, two layers, two heads of 2, one key-value head, intermediate 8, vocabulary 10."""
    monkeypatch.setitem(shapes.SHAPES, "by hand", (4, 2, 2, 1, 8, 10))


def test_a_prompt_counts_once_for_its_completions():
    """
    A layer's weights: q and o 4·4, k and v 4·2, three of 4·8: 144. Tokens: 3 + 2 + 1 = 6, so 2 · 6 · 2 · 144. Pairs of
    a query and a key: the prompt's 1+2+3, then 4+5 and 4: 19, each 4 operations in each of 2 layers and 4 numbers.
    """
    prompt = [1, 2, 3]
    one = flops.work("by hand", [prompt, prompt], [[4, 5], [6]])
    assert one.body == 2 * 6 * 2 * 144 + 4 * 19 * 2 * 4
    assert one.head == 2 * 3 * 4 * 10
    assert one.forward == one.body + one.head
    assert flops.update(one, lora=True) == 2 * one.forward
    assert flops.update(one, lora=False) == 3 * one.forward


def test_prompts_that_differ_count_each():
    one, two = [1, 2, 3], [3, 2, 1]
    both = flops.work("by hand", [one, two], [[4, 5], [6]])
    alone = [flops.work("by hand", [prompt], [ids]) for prompt, ids in ((one, [4, 5]), (two, [6]))]
    assert both.forward == sum(each.forward for each in alone)


def test_half_a_billion_parameters():
    """Of Qwen2.5-0.5B a token costs twice its 494 million weights, the output layer's 136 million included."""
    one = flops.work("qwen2.5-0.5b", [[1]], [[2]])
    assert one.body / 2 / 2 == pytest.approx(358e6, rel=0.01) and one.head / 2 == pytest.approx(136e6, rel=0.01)
