"""`import trl_prorl` in a project that has folders of its own called `eval`, `tasks` or `recipes`."""

import subprocess
import sys


def test_the_library_needs_no_name_that_a_user_s_folder_may_have(tmp_path):
    for name in ("eval", "tasks", "recipes"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise ImportError('the folder of the user')\n")
    code = "from trl_prorl import ProRLConfig, ProRLTrainer; import trl_prorl.hub.card, trl_prorl.hub.publish"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
