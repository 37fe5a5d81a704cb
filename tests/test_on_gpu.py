"""What only a GPU shows; `pytest -m gpu` runs these, and on the GPU all other tests that are marked so."""

import contextlib
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from compared_samples import sampled_difference
from run_record import read_rows as rows
from transformers import AutoModelForCausalLM, GenerationConfig

from trl_prorl.eval.run_folder.reading import read_env
from trl_prorl.fast.compact import compact_sample
from trl_prorl.fast.recording import Recordings
from trl_prorl.fast.rows import draw
from trl_prorl.fast.token_forward import PaddingMask
from trl_prorl.guards.finite import all_finite
from trl_prorl.run.meter import StageTimer, measure_gpu


pytestmark = pytest.mark.gpu
ROOT = Path(__file__).parent.parent


@pytest.fixture(autouse=True)
def on_a_gpu(device):
    if device == "cpu":
        pytest.skip("needs a GPU: pytest -m gpu")


@pytest.mark.parametrize("keys", [{"beta": 0.1, "ref_reset_every": 2}, {"beta_old": 0.1, "reuse_old_logps": True}])
@pytest.mark.parametrize("lora", [True, False])
def test_a_run_in_bf16_with_everything_on(run, keys, lora):
    trainer = run(lora=lora, bf16=True, pack_groups="on", compact_generation="on", **keys)
    written = rows(trainer.args.output_dir)
    assert len(written) == 4
    assert all(row["peak_memory_gib"] > 0 for row in written)
    assert all(row["policy_forward_calls"] == 1 for row in written)
    assert read_env(trainer.args.output_dir)["execution"]["cuda_graph"] == "on"


def test_probes_leave_the_random_numbers_of_the_gpu_alone(make_trainer):
    states = []
    for keys in ({}, {"pack_groups": "on", "compact_generation": "on"}):
        torch.cuda.manual_seed(5)
        make_trainer(seed=5, bf16=True, **keys)
        states.append(torch.cuda.get_rng_state())
    assert torch.equal(*states)


def test_tokens_are_drawn_as_often_as_they_are_probable():
    torch.manual_seed(0)
    probabilities = torch.tensor([0.0, 0.5, 0.25, 0.25, 0.0], device="cuda").expand(40_000, 5)
    numbers = torch.rand(40_000, 1, dtype=torch.float64, device="cuda")
    counts = torch.bincount(draw(probabilities, numbers)[0], minlength=5).cpu() / 40_000
    assert counts[0] == counts[4] == 0
    assert (counts - probabilities[0].cpu()).abs().max() < 0.015


def greedy(model, replays, padding=7):
    """Greedy completions of 24 rows that end at different lengths, and their log-probabilities."""
    ids = torch.randint(3, 250, (6, 20), generator=torch.Generator().manual_seed(1)).cuda()
    mask = torch.ones_like(ids)
    mask[0, :padding] = 0
    settings = GenerationConfig(max_new_tokens=150, do_sample=False, pad_token_id=0, eos_token_id=list(range(60, 80)))
    copies = torch.arange(6, device="cuda").repeat_interleave(4)
    recordings = Recordings() if replays else None
    given = {"copies": copies, "logps_at": 1.0, "recordings": recordings, "custom_generate": compact_sample}
    return model.generate(input_ids=ids, attention_mask=mask, generation_config=settings, **given)


@pytest.mark.parametrize("padding", [0, 7])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_recorded_forward_gives_the_tokens_of_the_model(tiny_model, dtype, padding, monkeypatch):
    """With a mask in both: attention without one has another kernel in bf16, which rounds otherwise."""
    monkeypatch.setattr(PaddingMask, "up_to", lambda mask, length: mask._to_add[..., :length])
    model = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=dtype).cuda().eval()
    assert sampled_difference(model, replays=True) < (1e-3 if dtype == torch.float32 else 0.1)
    plain = greedy(model, replays=False, padding=padding)
    recorded = greedy(model, replays=True, padding=padding)
    assert recorded.recorded
    assert torch.equal(plain.ids, recorded.ids)
    assert torch.allclose(plain.logps, recorded.logps, atol=1e-5)


UNSEEN = """
import sys, torch
from transformers import AutoModelForCausalLM

sys.path.append("tests")
from compared_samples import sampled_difference

model = AutoModelForCausalLM.from_pretrained(sys.argv[1]).cuda().eval()
model.model.layers[0].register_forward_hook(lambda module, given, states: torch.cuda.synchronize())
sampled_difference(model, replays=True)
"""


def test_a_recording_that_fails_ends_the_program_with_a_cure(tiny_model):
    """In a process of its own: some versions of torch cannot use the GPU any more. Torch does not see this wait."""
    done = subprocess.run([sys.executable, "-c", UNSEEN, tiny_model], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 1
    pattern = r"^\S+: .*could not be recorded as a CUDA graph.*compact_generation"
    assert re.search(pattern, done.stderr, re.MULTILINE), done.stderr[-2000:]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_finite_on_the_gpu(dtype):
    largest = torch.full((1000,), torch.finfo(dtype).max, dtype=dtype, device="cuda")
    assert all_finite([largest, -largest])
    largest[7] = torch.nan
    assert not all_finite([largest])


def test_a_stage_has_the_seconds_of_the_work_that_it_began():
    """They lie between those of events around the stage and inside it, and the host does not wait for them."""
    matrix = torch.randn(4096, 4096, device="cuda")
    timer = StageTimer(torch.device("cuda"))
    before, begin, end, after = (torch.cuda.Event(enable_timing=True) for _ in range(4))
    torch.cuda.synchronize()
    before.record()
    with timer.stage("update"):
        begin.record()
        for _ in range(50):
            matrix @ matrix
        end.record()
    after.record()
    assert not end.query()  # the device works on
    seconds = timer.seconds["update"]
    assert end.query()
    torch.cuda.synchronize()
    assert begin.elapsed_time(end) <= 1000 * seconds <= before.elapsed_time(after)


def test_peak_memory_begins_anew_with_every_step():
    card = torch.device("cuda", torch.cuda.current_device())
    measure_gpu(card)
    large = torch.empty(2**30, dtype=torch.uint8, device=card)
    with_it = measure_gpu(card)["peak_memory_gib"]
    del large
    measure_gpu(card)  # the peak of a step in which it was still there at the beginning
    assert with_it - measure_gpu(card)["peak_memory_gib"] == pytest.approx(1.0, abs=0.01)


def in_a_process(log, *command):
    """The exit status of a command; at a limit SIGTERM lets a launcher end its workers."""
    with open(log, "w") as written:
        process = subprocess.Popen([sys.executable, *map(str, command)], cwd=ROOT, stdout=written, stderr=written)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(100)
        process.terminate()
        return process.wait()


def test_nan_while_sampling_is_named(tmp_path, tiny_model):
    """An assertion on the device, after which a process computes nothing more."""
    in_a_process(tmp_path / "log", ROOT / "tests" / "gpu_worker.py", tiny_model, tmp_path / "run", "nan")
    assert "at step 1: next-token probabilities" in (tmp_path / "log").read_text()


def test_a_killed_run_resumes_bit_for_bit(tmp_path, tiny_model):
    worker = ROOT / "tests" / "gpu_worker.py"
    assert in_a_process(tmp_path / "log", worker, tiny_model, tmp_path / "whole", "saved") == 0
    assert in_a_process(tmp_path / "log", worker, tiny_model, tmp_path / "run", "killed") == -signal.SIGKILL
    assert in_a_process(tmp_path / "log", worker, tiny_model, tmp_path / "run", "resumed") == 0
    weights = [tmp_path / name / "checkpoint-4" / "adapter_model.safetensors" for name in ("whole", "run")]
    assert weights[0].read_bytes() == weights[1].read_bytes()
