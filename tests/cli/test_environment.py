"""What is known of a CPU: whether it computes bf16, which evaluations ask and `trl-prorl env` shows."""

import pytest

from trl_prorl.cli import environment


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


@pytest.mark.parametrize("text, expected", MACHINES.values(), ids=MACHINES)
def test_what_is_known_of_a_cpu(tmp_path, monkeypatch, text, expected):
    path = tmp_path / "cpuinfo"
    if text is not None:
        path.write_text(text)
    monkeypatch.setattr(environment, "CPUINFO", path)
    assert environment.cpu_computes_bf16() is expected
