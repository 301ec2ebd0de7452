"""The ``specbench`` command; it reports every failure in one line.

Nothing heavy is imported here, so that ``--help``, ``list`` and usage errors return at once.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from typing import Annotated, NoReturn

import typer

from specbench import __version__
from specbench.cli.commands import HELP, Commands, replacement
from specbench.cli.output import INTERRUPTED, message, prepare_streams, show_warnings
from specbench.errors import SpecbenchError, require

DEBUG = "--debug"

app = typer.Typer(
    cls=Commands,
    invoke_without_command=True,
    rich_markup_mode="rich",
    pretty_exceptions_show_locals=False,
    context_settings=HELP,
    epilog="Example: [bold]specbench run --method sd,diversed --task mini-math[/bold], "
    "then [bold]specbench plot pareto[/bold]",
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"specbench {__version__}")
        raise typer.Exit()


START = """\
specbench says whether speculative decoding makes a model faster, and whether it changes its texts.

  specbench run                      measure six methods on a bundled pair, in about a minute
  specbench decide --target llama-3.1-8b --draft llama-3.2-1b --machine h100 --acceptance .7
                                     whether drafts will pay, computed without a model
  specbench run --server mine=URL    measure a server with OpenAI's API

specbench --help lists all commands, specbench docs the pages."""


@app.callback()
def specbench(
    context: typer.Context,
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
    if context.invoked_subcommand is None:
        print(START)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Entry point of the ``specbench`` command: run it, or given arguments, and exit.

    Exit codes: 0 success, 1 the run failed, 2 usage error, 3 incomplete, 130 interrupted.
    """
    try:
        code = _run(sys.argv[1:] if arguments is None else arguments)
    except KeyboardInterrupt:  # a second one, while the first was being handled
        code = INTERRUPTED
    if arguments is None:  # a late Ctrl-C would only print a traceback
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.exit(code)


def _run(arguments: Sequence[str]) -> int:
    """Run a command and return its exit code; print an error as one line."""
    prepare_streams()
    show_warnings()
    try:
        odd = [word for word in arguments if word.encode(errors="ignore").decode() != word]
        require(not odd, f"{' '.join(odd)} is not UTF-8: rename the file")
        code: int = app(arguments, prog_name="specbench", standalone_mode=False) or 0
        if code == INTERRUPTED:
            _print_error("interrupted", code)
    except typer.TyperException as error:
        code = error.exit_code
        removed = replacement([word for word in arguments if word != DEBUG])
        _print_error(removed or _parameter_as_option(error) or error.format_message(), code)
    except Exception as error:
        if DEBUG in arguments:
            raise
        if isinstance(error, SpecbenchError):
            code, text = error.exit_code, str(error)
        elif isinstance(error, OSError) and error.strerror:  # such as a full disk
            place = f"{error.filename}: " if error.filename else ""
            code, text = 2, f"{place}{error.strerror}"
        else:
            how = f"for the traceback: specbench {DEBUG} ..."
            code, text = 1, f"{type(error).__name__}: {error} ({how})"
        _print_error(text, code)
    return code


def _parameter_as_option(error: typer.TyperException) -> str:
    """Return what to type in place of an unknown option that names a method's parameter."""
    if not hasattr(error, "possibilities"):  # those of an unknown option
        return ""
    from specbench.methods.registry import METHODS

    option = str(getattr(error, "option_name", ""))
    name = option.lstrip("-").replace("-", "_")
    if all(name != parameter.name for rule in METHODS.values() for parameter in rule.parameters):
        return ""
    return f"there is no option {option}: parameters of methods are given as --set {name}=VALUE"


def _print_error(text: str, code: int) -> None:
    if text:  # one that begins with "interrupted" is no error
        print("error: " * (code != INTERRUPTED) + message(text), file=sys.stderr)
