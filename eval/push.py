"""
Push a run to the Hugging Face Hub, or push it again: after a failed upload, or once `eval.passk` has scored it.

    python -m eval.push --run runs/demo/A --repo someone/reverse-digits-A

Writes the model card from the run's record and pushes model or adapter, tokenizer, card and record in one commit. The token
is that of `hf auth login`, or `HF_TOKEN`.
"""

import argparse
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from eval.runs import InputError, load_config
from trl_prorl.card import CARD_FILE, model_card, write_card
from trl_prorl.errors import PushError
from trl_prorl.publish import Content, files_to_push, make_api, open_repo, push, push_command, repo_name


def model_folder(run_dir: Path, config: dict) -> Path:
    """Where a run's model is: in the run folder or, if the record was kept elsewhere (`run_dir`), in `output_dir`."""
    for folder in (run_dir, Path(config.get("output_dir") or run_dir)):
        if any((folder / name).is_file() for name in ("adapter_config.json", "config.json")):
            return folder
    raise InputError(
        f"run folder '{run_dir}' has no trained model (no adapter_config.json, no config.json); let the run finish, or copy "
        "a checkpoint's files there"
    )


def file_table(repo: str, files: dict[str, Content]) -> Table:
    """What would be pushed, with sizes."""
    table = Table(title=f"{repo}: {len(files)} files")
    table.add_column("file")
    table.add_column("bytes", justify="right")
    for name, content in sorted(files.items()):
        table.add_row(name, f"{len(content) if isinstance(content, bytes) else content.stat().st_size:,}")
    return table


def parse_args(argv=None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m eval.push", description="Push a run to the Hugging Face Hub.")
    parser.add_argument("--run", required=True, type=Path, help="run folder")
    parser.add_argument("--repo", help="repository (default: the run's hub_model_id, else the folder's name)")
    parser.add_argument("--private", action="store_true", help="make a new repository private")
    parser.add_argument(
        "--with-reference",
        action=argparse.BooleanOptionalAction,
        help="push the frozen adapter ref, too (default: the run's hub_push_reference)",
    )
    record = parser.add_mutually_exclusive_group()
    record.add_argument("--with-record", action="store_true", default=True, help="push the record (the default)")
    record.add_argument("--without-record", dest="with_record", action="store_false", help="leave the record out")
    parser.add_argument("--dry-run", action="store_true", help="show what would be pushed, and do nothing")
    return parser.parse_args(argv)


def main(argv=None) -> int:
    """Entry point; returns the exit code: 2 for bad input, 1 for a push that failed."""
    args = parse_args(argv)
    try:
        config = load_config(args.run)
        folder = model_folder(args.run, config)
        reference = config.get("hub_push_reference", False) if args.with_reference is None else args.with_reference
        name = repo_name(args.repo or config.get("hub_model_id"), folder)
        files = files_to_push(folder, args.run, reference=reference, record=args.with_record)
        if args.dry_run:
            card = model_card(args.run, folder, repo=name)
            Console().print(file_table(name, files | {CARD_FILE: str(card).encode()}))
            print(card)
            return 0
        api = make_api()
        repo = open_repo(name, private=args.private or config.get("hub_private_repo"), api=api)
        files[CARD_FILE] = write_card(model_card(args.run, folder, repo=repo), folder)
        done = push(
            repo,
            files,
            message="Push of the run" if args.with_record else "Push of the model",
            again=push_command(args.run),
            revision=config.get("hub_revision"),
            api=api,
        )
        print(f"pushed {len(files)} files to {done.repo_url}")
    except PushError as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return 1
    except ValueError as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
