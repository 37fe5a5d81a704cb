"""A link in the folder of a run or a model that leads out of it is refused by name, at every door."""

import pytest

from trl_prorl.errors import InputError
from trl_prorl.run.files import check_contents


@pytest.fixture
def out(tmp_path):
    """A folder with files at two depths, and a file and a folder outside of it."""
    for name in ("run/config.yaml", "run/checkpoint-1/a", "run/samples/base/a", "secret", "private/key"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    return tmp_path / "run"


@pytest.mark.parametrize(
    "name, target",
    [("README.md", "../secret"), ("checkpoint-1/model", "../../private"), ("a", "OUT/private"), ("a", "OUT/nowhere")],
)
def test_a_link_that_leads_out_is_named(out, name, target):
    (out / name).symlink_to(target.replace("OUT", str(out.parent)))
    (out / "samples" / "other").symlink_to(f"../{name}")  # inside, by way of the first
    target = out.parent / target.rpartition("/")[2]
    with pytest.raises(InputError, match=f"output_dir='x' contains '{name.rpartition('/')[2]}'.*{target}"):
        check_contents(out, "output_dir='x'")


def test_links_that_stay_inside_and_folders_that_are_links_themselves(out):
    (out / "checkpoint-2").symlink_to("checkpoint-1")
    (out / "samples" / "trained").symlink_to(out / "samples" / "base")
    (out / "gone").symlink_to("checkpoint-9")
    linked = out.parent / "runs"
    linked.symlink_to(out)
    above = out.parent / "elsewhere"
    above.symlink_to(out.parent)
    for folder in (out, linked, above / "run", out.parent / "not-there"):
        check_contents(folder)
    (out / "wandb" / "run-1").mkdir(parents=True)
    (out / "wandb" / "run-1" / "debug.log").symlink_to(out.parent / "secret")  # made by its client
    check_contents(out)
    (out / "checkpoint-1" / "wandb").mkdir()
    (out / "checkpoint-1" / "wandb" / "a").symlink_to(out.parent / "secret")  # not the run's own
    with pytest.raises(InputError, match="contains 'a'"):
        check_contents(out)


def test_the_hub_s_cache_keeps_its_links_to_the_blobs_of_a_repository(tmp_path):
    repo = tmp_path / "models--owner--name"
    other = tmp_path / "models--owner--other"
    snapshot = repo / "snapshots" / "0123"
    for folder in (snapshot, repo / "blobs", other / "blobs"):
        folder.mkdir(parents=True)
    for blobs in (repo / "blobs", other / "blobs"):
        (blobs / "abc").write_text("weights")
    (snapshot / "config.json").symlink_to("../../blobs/abc")
    check_contents(snapshot)
    (repo / "blobs" / "def").symlink_to(tmp_path / "secret")
    for target in ("../../../models--owner--other/blobs/abc", "../../refs/main", "../../blobs/def"):
        (snapshot / "merges.txt").unlink(missing_ok=True)
        (snapshot / "merges.txt").symlink_to(target)
        with pytest.raises(InputError, match="'merges.txt'"):
            check_contents(snapshot)
