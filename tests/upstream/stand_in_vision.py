"""Tiny vision-language models and their processors, of the two architectures that need no torchvision."""

from stand_in_tokenizers import make_tokenizer
from torch import nn
from transformers import (
    Gemma3Config,
    Gemma3ForConditionalGeneration,
    Gemma3Processor,
    LlavaNextConfig,
    LlavaNextForConditionalGeneration,
    LlavaNextProcessor,
    PreTrainedModel,
    ProcessorMixin,
)
from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil
from transformers.models.llava_next.image_processing_pil_llava_next import LlavaNextImageProcessorPil


PATCH = 14
SIZES = {"num_hidden_layers": 2, "hidden_size": 16, "num_attention_heads": 4, "intermediate_size": 32}
TEXT = {**SIZES, "num_key_value_heads": 2, "max_position_embeddings": 4096, "bos_token_id": None}
VISION = {**SIZES, "patch_size": PATCH}


def _text(tokenizer, **keys) -> dict:
    ids = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id}
    return {**TEXT, **ids, "vocab_size": len(tokenizer), **keys}


def gemma3() -> tuple[PreTrainedModel, ProcessorMixin]:
    """Four tokens for an image of 56 by 56 pixels."""
    names = {"image_token": "<image_soft_token>", "boi_token": "<start_of_image>", "eoi_token": "<end_of_image>"}
    tokenizer = make_tokenizer("gemma3", names)
    side = 4 * PATCH
    length = 4
    images = Gemma3ImageProcessorPil(size={"height": side, "width": side})
    template = {"chat_template": tokenizer.chat_template}
    config = Gemma3Config(
        text_config=_text(tokenizer, head_dim=8),
        vision_config={**VISION, "image_size": side, "vision_use_head": False},
        mm_tokens_per_image=length,
        image_token_index=tokenizer.image_token_id,
        boi_token_index=tokenizer.boi_token_id,
        eoi_token_index=tokenizer.eoi_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    model = Gemma3ForConditionalGeneration(config)
    # Zeros by default, through which no gradient reaches the vision tower.
    nn.init.xavier_uniform_(model.model.multi_modal_projector.mm_input_projection_weight)
    return model, Gemma3Processor(images, tokenizer, image_seq_length=length, **template)


def llava_next() -> tuple[PreTrainedModel, ProcessorMixin]:
    """Tiles of 28 by 28 pixels."""
    tokenizer = make_tokenizer("llava_next", {"image_token": "<image>"})
    side = 2 * PATCH
    grid = [[side, 2 * side], [2 * side, side], [2 * side, 2 * side]]
    crop = {"size": {"shortest_edge": side}, "crop_size": {"height": side, "width": side}}
    images = LlavaNextImageProcessorPil(**crop, image_grid_pinpoints=grid)
    patches = {"patch_size": PATCH, "vision_feature_select_strategy": "default", "num_additional_image_tokens": 1}
    config = LlavaNextConfig(
        text_config=_text(tokenizer, model_type="mistral"),
        vision_config={**VISION, "image_size": side, "model_type": "clip_vision_model"},
        image_token_index=tokenizer.image_token_id,
        image_grid_pinpoints=grid,
    )
    processor = LlavaNextProcessor(images, tokenizer, chat_template=tokenizer.chat_template, **patches)
    return LlavaNextForConditionalGeneration(config), processor


# Qwen's processor needs torchvision: Gemma's architecture answers to its name, for the tests that ask for any model
# that sees.
STAND_INS = {
    "tiny-Gemma3ForConditionalGeneration": gemma3,
    "tiny-LlavaNextForConditionalGeneration": llava_next,
    "tiny-Qwen2_5_VLForConditionalGeneration": gemma3,
}
