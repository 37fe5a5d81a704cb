"""The tokenizer that stands in for those of TRL's test models: the 256 bytes, some markers and words, and filler.

Some tests write token numbers of Qwen's vocabulary by hand, which would make every step ten times as slow as a small
vocabulary does. The tokens that they write are in this one, and `NUMBERS` says under which number. Chat templates are
the ones that the installed TRL ships, since it recognises a model by its template.
"""

from pathlib import Path

import trl
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import bytes_to_unicode


BYTES = 256
SIZE = 512

PAD = "<|endoftext|>"
START = "<|im_start|>"
END = "<|im_end|>"
# By their numbers in Qwen's vocabulary, of which the first 256 are the bytes, as here.
MARKERS = {151643: PAD, 151644: START, 151645: END}  # left out of text
TAGS = {
    151657: "<tool_call>",
    151658: "</tool_call>",
    151665: "<tool_response>",
    151666: "</tool_response>",
    151667: "<think>",
    151668: "</think>",
}
WORDS = {
    293: " b",
    314: " {",
    330: ' "',
    397: ">\n",
    411: "out",
    450: "de",
    497: '",',
    522: "</",
    606: "name",
    788: '":',
    894: " any",
    927: "sh",
    944: "'t",
    1318: "text",
    1414: " know",
    1513: " don",
    2765: " won",
    4913: '{"',
    5212: ' {"',
    5392: " tool",
    6023: "hi",
    6659: "call",
    7692: "async",
    9520: "step",
    11248: "}}\n",
    13477: "crement",
    14172: "tool",
    16252: " increment",
    16370: "arguments",
    17453: "Done",
    22785: "_tool",
    35744: "increment",
    64648: "multiply",
    93054: "_multiply",
    95642: '"}}\n',
}
NUMBERS = {number: BYTES + place for place, number in enumerate([*MARKERS, *TAGS, *WORDS])}


def make_tokenizer(template: str, named: dict[str, str] | None = None) -> PreTrainedTokenizerFast:
    """The tokenizer, of a chat template that TRL ships, with more markers, which a processor asks for by name."""
    named = named or {}
    characters = bytes_to_unicode()  # in the order of GPT-2's vocabulary, which is Qwen's too
    words = ["".join(characters[byte] for byte in word.encode()) for word in WORDS.values()]
    tokens = [*characters.values(), *MARKERS.values(), *TAGS.values(), *words, *named.values()]
    # Filler makes completions differ in length too, and a reward model sees that.
    tokens += [f"w{number}" for number in range(len(tokens), SIZE)]
    tokenizer = Tokenizer(models.BPE(vocab={token: number for number, token in enumerate(tokens)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in TAGS.values()])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=END,
        extra_special_tokens={"start_token": START, **named},
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = (Path(trl.__file__).parent / "chat_templates" / f"{template}.jinja").read_text()
    return fast
