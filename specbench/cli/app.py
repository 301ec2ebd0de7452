"""The ``specbench`` command, and how every failure becomes one line.

Nothing heavy is imported here: ``--help``, ``list`` and a refused request must answer at once.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from typing import Annotated, NoReturn

import typer

from specbench.cli.commands import Commands
from specbench.cli.output import INTERRUPTED, Interrupted, show_warnings
from specbench.errors import SpecbenchError, UsageError
from specbench.masking import mask_tokens
from specbench.version import __version__

DEBUG = "--debug"

app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_show_locals=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Example: [bold]specbench run --method sd,diversed --task mini-math[/bold], "
    "then [bold]specbench plot pareto[/bold]",
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"specbench {__version__}")
        raise typer.Exit()


@app.callback()
def specbench(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", callback=_print_version, is_eager=True
        ),
    ] = False,
    debug: Annotated[
        bool, typer.Option(DEBUG, help="Show the traceback of an error instead of one line.")
    ] = False,
) -> None:
    """Measure speculative decoding: quality, acceptance and speed of methods, on one engine."""


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Entry point of the ``specbench`` command: run it and exit.

    Exit codes: 0 all went well, 1 the run failed, 2 the request was wrong, 130 interrupted.

    Args:
        arguments: The command line; that of the process by default.
    """
    try:
        code = _run(sys.argv[1:] if arguments is None else arguments)
    except KeyboardInterrupt:  # one more, while another was dealt with
        code = INTERRUPTED
    if arguments is None:  # nothing is left to stop, and Python would trace where it came
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.exit(code)


def _run(arguments: Sequence[str]) -> int:
    """Run a command and return its exit code; of an error say one line."""
    show_warnings()
    try:
        code: int = app(arguments, prog_name="specbench", standalone_mode=False) or 0
        if code == INTERRUPTED:
            _say("interrupted")
    except typer.TyperException as error:
        # Without arguments the help has been printed by now and no message is left.
        _say(error.format_message())
        code = error.exit_code
    except Exception as error:
        if DEBUG in arguments:
            raise
        _say(_describe(error))
        code = _code_of(error)
    return code


def _code_of(error: Exception) -> int:
    if isinstance(error, Interrupted):
        return INTERRUPTED
    return 2 if isinstance(error, UsageError) else 1


def _describe(error: Exception) -> str:
    if isinstance(error, SpecbenchError):
        return str(error)
    said = mask_tokens(f"{type(error).__name__}: {error}")
    return f"{said} (where: specbench {DEBUG} ...)"


def _say(message: str) -> None:
    if message:
        print("error:", " ".join(message.split()), file=sys.stderr)
