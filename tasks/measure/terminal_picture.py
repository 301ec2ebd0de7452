"""Run a command in a terminal, and draw what it prints: terminal_picture.py FILE.svg COMMAND ..."""

import os
import pty
import shlex
import sys
from pathlib import Path

from rich.text import Text

from specbench.cli.output import picture

WIDTH = 128  # characters of a line


def main(file: str, *command: str) -> None:
    """Run a command, and write the picture if it succeeds."""
    printed = bytearray()

    def read(terminal: int) -> bytes:
        data = os.read(terminal, 1024)
        printed.extend(data)
        return data

    os.environ |= {"COLUMNS": str(WIDTH), "TERM": "xterm-256color"}
    if code := os.waitstatus_to_exitcode(pty.spawn(command, read)):
        sys.exit(code)
    shown = Text.from_ansi(printed.decode().replace("\r\n", "\n"))
    prompt = Text.assemble(("$ ", "dim"), (shlex.join(command), "bold"))
    Path(file).write_text(picture(prompt, shown, width=WIDTH), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
