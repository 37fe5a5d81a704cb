"""What a stranger's run folder, or the base that it names, links to outside is neither read, written nor deleted."""

import importlib
import json
import shutil

import pytest
import yaml
from run_record import hash_files

from trl_prorl.eval import passk
from trl_prorl.eval.samples.held_out import HeldOut


COMMANDS = {
    "passk": ["--prompts", "2", "--n", "1"],
    "drift": ["--prompts", "2", "--samples", "1"],
    "report": [],
    "boundary": [],
    "trajectory": [],
    "push": ["--dry-run"],
}


@pytest.fixture
def recorded(run_dir):
    """The run with one step on record."""
    (run_dir / "metrics.jsonl").write_text(json.dumps({"step": 1}) + "\n")
    (run_dir / "env.json").write_text("{}")
    return run_dir


@pytest.fixture
def mine(tmp_path):
    """A folder of the user's, with tables in it."""
    folder = tmp_path / "mine"
    folder.mkdir()
    for name in ("samples.parquet", "part-1.parquet", "id_rsa"):
        (folder / name).write_text(name)
    return folder


@pytest.mark.parametrize("name", COMMANDS)
def test_a_link_out_of_a_run_s_folder(recorded, task, mine, capsys, name):
    before = hash_files(mine)
    evaluation = HeldOut(recorded, "test", 2)
    (recorded / "samples").mkdir()
    samples = evaluation.store(evaluation.base, evaluation.sampling).folder
    samples.symlink_to(mine)
    main = importlib.import_module(f"eval.{name}").main
    for link in (samples, recorded / "merges.txt", recorded / "passk.json"):
        if link != samples:
            link.symlink_to(mine / "id_rsa")
        capsys.readouterr()
        assert main(["--run", str(recorded), *COMMANDS[name]]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert f"contains the link '{link.relative_to(recorded)}', which leads out" in line
        link.unlink()
    assert hash_files(mine) == before
    assert not task.seen


def test_a_comparison_leaves_out_a_run_with_such_a_link(recorded, mine, tmp_path, capsys):
    other = shutil.copytree(recorded, tmp_path / "B")
    (recorded / "passk.json").symlink_to(mine / "id_rsa")
    assert importlib.import_module("eval.compare").main(["--run", str(recorded), str(other)]) == 2
    shown = " ".join(capsys.readouterr().out.split())
    assert "is left out" in shown and "contains the link 'passk.json'" in shown


def test_a_link_out_of_the_model_s_folders(run_dir, base, task, mine, tmp_path, capsys):
    """That of the base, and `output_dir` where the record lies elsewhere."""
    own = tmp_path / "base"
    shutil.copytree(base, own)
    config = yaml.safe_load((run_dir / "config.yaml").read_text())
    (run_dir / "config.yaml").write_text(yaml.safe_dump(config | {"model_name_or_path": str(own)}))
    (own / "merges.txt").symlink_to(mine / "id_rsa")
    assert passk.main(["--run", str(run_dir)]) == 2
    assert f"'{own}' contains the link 'merges.txt'" in capsys.readouterr().err
    (own / "merges.txt").unlink()

    record = tmp_path / "record"
    record.mkdir()
    config |= {"run_dir": str(record), "output_dir": str(run_dir)}
    (record / "config.yaml").write_text(yaml.safe_dump(config))
    (run_dir / "merges.txt").symlink_to(mine / "id_rsa")
    assert passk.main(["--run", str(record)]) == 2
    assert f"'{run_dir}' contains the link 'merges.txt'" in capsys.readouterr().err
