"""
Push a run to the Hugging Face Hub; push again after a failed upload, or after `trl-prorl passk` has scored it.

    trl-prorl push --run runs/demo/variantA --repo someone/reverse-digits-A

Writes the model card from the run's log files, and pushes model or adapter, tokenizer, card and log files. Log in with
`hf auth login`, or set `HF_TOKEN`. `--dry-run` lists the files and their sizes, and prints the card with `--card`.
"""

import functools
import os
import sys

from trl_prorl.cli.ending import as_bad_input, command
from trl_prorl.eval import command_lines
from trl_prorl.eval.pages.table import Table, terminal
from trl_prorl.eval.run_folder.reading import load_config
from trl_prorl.eval.samples.models import check_trained_model
from trl_prorl.hub.card import CARD_FILE, model_card, write_card
from trl_prorl.hub.publish import files_to_push, make_api, open_repo, stage, upload
from trl_prorl.run.files import STAGED
from trl_prorl.text import visible


RUN_KEPT = "the run folder is complete. Run the same command to push again."


@functools.partial(command, kept=RUN_KEPT)
@as_bad_input()
def main(argv=None) -> None:
    """Entry point."""
    args = command_lines.push(argv)
    config = load_config(args.run)
    check_trained_model(args.run)
    folder = args.run
    reference = args.with_reference
    if reference is None:
        reference = config.get("hub_push_reference", False)
    name = args.repo or config.get("hub_model_id") or folder.resolve().name
    files = files_to_push(folder, args.run, reference=reference, record=args.with_record)
    if args.dry_run:
        card = model_card(args.run, folder, repo=name, license=args.license)
        sizes = {path_in_repo: path.stat().st_size for path_in_repo, path in files.items()}
        sizes[CARD_FILE] = len(str(card).encode())
        print(visible(f"Dry run: nothing was uploaded. Would push {len(sizes)} files to {name}."))
        rows = [[path, f"{size:,}"] for path, size in sorted(sizes.items())]
        terminal().print(Table(f"{name}: {len(sizes)} files", ["file", "bytes"], rows).to_rich())
        if args.card:
            print(card)
        return
    api = make_api()
    repo = open_repo(name, private=args.private or config.get("hub_private_repo"), api=api)
    files[CARD_FILE] = write_card(model_card(args.run, folder, repo=repo, license=args.license), folder)
    done = upload(
        repo,
        stage(files, folder / f"{STAGED}{os.getpid()}"),
        message="Push of the run" if args.with_record else "Push of the model",
        run_dir=args.run,
        revision=config.get("hub_revision"),
        api=api,
    )
    print(visible(f"pushed {len(files)} files to {done.repo_url}"))


if __name__ == "__main__":
    sys.exit(main())
