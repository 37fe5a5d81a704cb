"""bf16 on CPUs: what is known of one, the line that says so, and the recipe that chooses."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from trl_prorl import environment
from trl_prorl.checkpoint.identity import changing_keys, check_same_run
from trl_prorl.environment import cpu_computes_bf16
from trl_prorl.launch import precision
from trl_prorl.launch.recipe import parse_recipe


ROOT = Path(__file__).parents[2]
# Lines of /proc/cpuinfo, shortened.
INTEL = "processor\t: 0\nvendor_id\t: GenuineIntel\nflags\t\t: fpu sse2 avx2 avx512f {}\nbugs\t\t: amx_bf16\n"
ARM = "processor\t: 0\nBogoMIPS\t: 2000.00\nFeatures\t: fp asimd sve bf16\nCPU part\t: 0xd40\n"
MACHINES = {
    "AMX": (INTEL.format("avx512_bf16 amx_tile amx_bf16"), True),
    "AVX512-BF16": (INTEL.format("avx512_bf16"), True),
    "AVX-NE-CONVERT": (INTEL.format("avx_ne_convert"), True),
    "AVX512": (INTEL.format("avx512bw avx512_vnni"), False),
    "ARM": (ARM, None),
    "Mac": (None, None),
}


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A function that puts the CPU of a name in the place of this one."""

    def become(name):
        path = tmp_path / name
        text, _ = MACHINES[name]
        if text is not None:
            path.write_text(text)
        monkeypatch.setattr(environment, "CPUINFO", path)

    return become


@pytest.mark.parametrize("name", MACHINES)
def test_what_is_known_of_a_cpu(machine, name):
    machine(name)
    assert cpu_computes_bf16() is MACHINES[name][1]


@pytest.mark.skipif(not environment.CPUINFO.exists(), reason="there is no /proc/cpuinfo")
def test_torch_says_the_same_of_this_cpu():
    asked = [getattr(torch.cpu, name, None) for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported")]
    if None in asked or cpu_computes_bf16() is None:
        pytest.skip("this torch, or this CPU, does not say")
    if "avx_ne_convert" not in environment.CPUINFO.read_text():
        assert cpu_computes_bf16() == any(ask() for ask in asked)


BF16 = {"bf16": True}
WEIGHTS = {"model_init_kwargs": {"dtype": "bfloat16"}}


@pytest.mark.parametrize(
    "name, keys, spoken",
    [
        ("AVX512", BF16, True),
        ("AVX512", WEIGHTS, True),
        ("AVX512", {}, False),
        ("AVX512-BF16", BF16, False),
        ("AMX", WEIGHTS, False),
        ("ARM", BF16, False),
        ("Mac", BF16, False),
    ],
)
def test_one_line_says_that_bf16_is_emulated(make_trainer, machine, caplog, name, keys, spoken):
    machine(name)
    make_trainer(**keys)
    lines = [record.getMessage() for record in caplog.records if record.name == precision.__name__]
    assert len(lines) == spoken
    if spoken:
        assert "emulates bf16" in lines[0]
        assert "bf16: false" in lines[0]
        assert "\n" not in lines[0]


def test_weights_of_a_model_that_is_given_count(make_trainer, machine, caplog, tiny_model):
    machine("AVX512")
    make_trainer(model=AutoModelForCausalLM.from_pretrained(tiny_model, dtype="bfloat16"))
    assert "emulates bf16" in caplog.text


def parsed(recipe, *options):
    """`bf16` and `dtype` of a recipe."""
    _, args, model_args = parse_recipe(["--config", str(recipe), *options])
    return args.bf16, model_args.dtype


SMOLLM2 = sorted(ROOT.glob("recipes/smollm2/*.yaml"))


@pytest.mark.parametrize("recipe", SMOLLM2, ids=lambda recipe: recipe.stem)
@pytest.mark.parametrize("name, native", MACHINES.items())
def test_recipes_for_a_cpu_take_what_it_computes_fastest(machine, recipe, name, native):
    machine(name)
    assert parsed(recipe) == ((True, "bfloat16") if native[1] else (False, "float32"))


def test_the_command_line_wins(machine):
    machine("AVX512")
    assert parsed(SMOLLM2[0], "--bf16", "true", "--dtype", "bfloat16") == (True, "bfloat16")


def test_a_resume_on_a_machine_that_chooses_otherwise_is_refused(machine):
    keys = {}
    for name in ("AMX", "AVX512"):
        machine(name)
        _, args, model_args = parse_recipe(["--config", str(SMOLLM2[0])])
        keys[name] = changing_keys(args, model_args)
    with pytest.raises(ValueError, match="bf16: True -> False; dtype: 'bfloat16' -> 'float32'"):
        check_same_run(keys["AMX"], keys["AVX512"], allowed=False)
    assert check_same_run(keys["AMX"], keys["AMX"], allowed=False) == {}


@pytest.mark.parametrize(
    "text, reason",
    [
        ("use_cpu: true\nbf16: auto\ndtype: bfloat16\n", "bf16: auto chooses dtype, too, and dtype='bfloat16'"),
        ("bf16: auto\n", "use_cpu is not true"),
        ("use_cpu: true\nbf16: Auto\n", "--bf16.*got Auto"),
        ("use_cpu: true\nfp16: auto\n", "--fp16.*got auto"),
    ],
)
def test_what_auto_cannot_choose_is_refused(tmp_path, text, reason):
    recipe = tmp_path / "arm.yaml"
    recipe.write_text(text + "output_dir: run\ntask: sums\n")
    with pytest.raises(ValueError, match=reason) as refused:
        parse_recipe(["--config", str(recipe)])
    assert "\n" not in str(refused.value)
