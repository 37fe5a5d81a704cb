"""Bad configurations are refused at once, with the key, the value and the cure."""

import warnings

import pytest
from trl.trainer.base_config import _BaseConfig

from trl_prorl import ProRLConfig
from trl_prorl.launch.command_line import launcher_keys


BASE = {"bf16": False, "use_cpu": True, "report_to": "none", "per_device_train_batch_size": 8, "num_generations": 4}


def config(**keys):
    return ProRLConfig(**{**BASE, **keys})


OF_A_GENERATION = ("gradient_accumulation_steps", "steps_per_generation", "num_iterations", "reuse_old_logps")
SOURCES = {
    "policy": [(1, 1, 1, True), (4, 2, 2, True)],
    "first_pass": [(1, 1, 2, True), (2, 2, 3, True)],
    "forward": [(1, 1, 2, False), (1, 4, 1, True), (2, 4, 2, True)],
}


@pytest.mark.parametrize("source", SOURCES)
def test_where_old_log_probabilities_come_from(source):
    for values in SOURCES[source]:
        assert config(**dict(zip(OF_A_GENERATION, values, strict=True))).old_logps_source == source, values


@pytest.mark.parametrize(
    "keys, warned",
    [
        ({"beta": 0.1}, []),
        ({"beta": 0.1, "kl_estimator": "k2", "use_bias_correction_kl": False}, []),
        ({"beta": 0.1, "kl_estimator": "k2", "use_bias_correction_kl": False, "num_iterations": 2}, ["beta"]),
        ({"beta": 0.1, "use_bias_correction_kl": False}, ["beta"]),
        ({"beta": 0.1, "beta_old": 0.1, "kl_estimator": "k2", "num_iterations": 2}, ["beta", "beta_old"]),
        ({"beta_old": 0.1, "num_iterations": 2, "importance_sampling_level": "sequence"}, ["beta_old"]),
        ({"beta_old": 0.1, "num_iterations": 2}, []),
    ],
)
def test_biased_gradients_warn_for_each_anchor_and_say_what_is_exact(keys, warned):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        config(**keys)
    messages = [str(w.message) for w in caught if "penalty is biased" in str(w.message)]
    assert [message.split()[4] for message in messages] == warned
    assert all("kl_estimator: k3, use_bias_correction_kl: true" in message for message in messages)


@pytest.mark.parametrize(
    ("keys", "begins"),
    [
        ({}, "bf16=True, the default, needs a GPU"),
        ({"bf16": True}, "bf16=True needs a GPU"),
        ({"bf16": False, "bf16_full_eval": True}, "bf16_full_eval=True needs a GPU"),
    ],
)
def test_bf16_without_a_gpu_is_refused_with_its_key(monkeypatch, keys, begins):
    for module in ("trl_prorl.refusals", "transformers.training_args"):
        monkeypatch.setattr(f"{module}.is_torch_bf16_gpu_available", lambda: False)
    with pytest.raises(ValueError) as error:
        ProRLConfig(**keys)
    assert str(error.value).startswith(begins) and "false, and use_cpu: true" in str(error.value)

    def on_a_cpu(config, checked=_BaseConfig.__post_init__):  # as the fixture of TRL's own suite
        config.use_cpu = True
        checked(config)

    monkeypatch.setattr(_BaseConfig, "__post_init__", on_a_cpu)
    ProRLConfig(**keys)  # transformers accepts it


@pytest.mark.parametrize("key", ["bf16", "fp16"])
def test_a_launcher_whose_precision_is_not_the_keys_is_refused(monkeypatch, key):
    """`accelerate launch --config_file accelerate_configs/single_gpu.yaml` of a recipe in float32."""
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", key)
    with pytest.raises(ValueError, match=f"^{key}=False, but the launcher says mixed_precision={key}, .*precision no"):
        ProRLConfig(**BASE)
    assert ProRLConfig(**BASE | {key: True}).mixed_precision == key
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "no")
    assert ProRLConfig(**BASE | {"bf16": True}).mixed_precision == "bf16"
    assert ProRLConfig(**BASE).mixed_precision == "no"


@pytest.mark.parametrize(
    ("env", "gpu", "keys"),
    [
        ({}, True, []),  # no launcher: the recipe decides
        ({"MIXED_PRECISION": "no", "USE_CPU": "True"}, True, ["--bf16 false", "--fp16 false", "--use_cpu true"]),
        ({"MIXED_PRECISION": "bf16", "USE_CPU": "False"}, False, ["--bf16 true", "--fp16 false", "--use_cpu true"]),
        ({"MIXED_PRECISION": "bf16", "USE_CPU": "False"}, True, ["--bf16 true", "--fp16 false", "--use_cpu false"]),
        ({"MIXED_PRECISION": "fp16"}, True, ["--bf16 false", "--fp16 true", "--use_cpu false"]),
        ({"MIXED_PRECISION": "fp16", "USE_CPU": "True"}, True, "mixed_precision=fp16, which needs a GPU"),
        ({"MIXED_PRECISION": "bf16"}, False, "told of several GPUs, and torch finds none"),
    ],
)
def test_a_default_recipe_takes_precision_and_device_from_the_launcher(monkeypatch, env, gpu, keys):
    monkeypatch.setattr("torch.cuda.is_available", lambda: gpu)
    for key in ("MIXED_PRECISION", "USE_CPU"):
        monkeypatch.delenv(f"ACCELERATE_{key}", raising=False)
    for key, value in env.items():
        monkeypatch.setenv(f"ACCELERATE_{key}", value)
    if isinstance(keys, str):
        with pytest.raises(ValueError, match=keys):
            launcher_keys()
    else:
        assert launcher_keys() == " ".join(keys).split()


@pytest.mark.parametrize(
    ("env", "told"),
    [
        ({"ACCELERATE_MIXED_PRECISION": "no", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}, True),
        ({"ACCELERATE_MIXED_PRECISION": "no"}, False),  # one process was asked for
        ({"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}, False),  # a cluster's shell, no launcher
    ],
)
def test_processes_that_the_launcher_did_not_start_are_told_of(monkeypatch, caplog, env, told):
    for key in ("ACCELERATE_MIXED_PRECISION", "MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE"):
        monkeypatch.delenv(key, raising=False)
    for key, value in env.items():
        monkeypatch.setenv(key, value)
    config()
    assert ("asked for several processes, and has started one" in caplog.text) == told


def test_deepspeed_that_is_not_installed_is_refused(monkeypatch):
    monkeypatch.setattr("trl_prorl.refusals.is_deepspeed_available", lambda: False)
    told = r"^deepspeed='zero.json' needs DeepSpeed: pip install 'trl-prorl\[deepspeed\]'"
    with pytest.raises(ValueError, match=told):
        config(deepspeed="zero.json")
