"""
Print README's example as a shell script: its files and commands, from the first file to the first report.

    python docs/readme_script.py > /tmp/example.sh
    cd "$(mktemp -d)" && PATH=/path/to/environment/bin:$PATH bash -e /tmp/example.sh

A block whose first line is `# NAME.EXTENSION` is a file; each `bash` block is commands.
"""

import re
from pathlib import Path


README = Path(__file__).parents[1] / "README.md"
BLOCK = re.compile(r"^```(\w+)\n(?:# (\w+\.\w+)\n)?(.*?)^```$", re.MULTILINE | re.DOTALL)


def example(page: str) -> str:
    """Return the shell script of a page."""
    lines = []
    for language, name, text in BLOCK.findall(page):
        if name:
            lines.append(f"cat > {name} <<'END_OF_FILE'\n{text}END_OF_FILE\n")
        elif language == "bash" and (lines or "cat >" in text):
            lines.append(text)
            if "trl-prorl report" in text:
                break
    return "".join(lines)


if __name__ == "__main__":
    print(example(README.read_text()), end="")
