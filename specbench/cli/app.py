"""The ``specbench`` command: its subcommands, and how every failure becomes one line.

Nothing heavy is imported here: ``--help``, ``list`` and a refused request must answer at once.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated, NoReturn

import typer

from specbench import __version__
from specbench.cli import pairs
from specbench.cli.bench import bench
from specbench.cli.check import check
from specbench.cli.compare import compare
from specbench.cli.finetune_draft import finetune_draft
from specbench.cli.list import list_
from specbench.cli.output import INTERRUPTED, Interrupted
from specbench.cli.plot import plot
from specbench.cli.report import report
from specbench.cli.run import run
from specbench.cli.score import score
from specbench.cli.suite import suite
from specbench.cli.summary import summary
from specbench.cli.sweep import sweep
from specbench.cli.sweep_weights import sweep_weights
from specbench.cli.table import table
from specbench.cli.theory import theory
from specbench.cli.trace import trace
from specbench.cli.train import train
from specbench.cli.transfer import transfer
from specbench.errors import SpecbenchError, UsageError
from specbench.masking import mask_tokens

DEBUG = "--debug"

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_show_locals=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Example: [bold]specbench run --method sd,diversed --task mini-math[/bold], "
    "then [bold]specbench plot pareto[/bold]",
)
app.command(epilog="Example: [bold]specbench run -m sd,static --weight 0.7 -t mini-math[/bold]")(
    run
)
app.command(epilog="Example: [bold]specbench sweep-weights --draft-length 3,5,7[/bold]")(
    sweep_weights
)
app.command(epilog="Example: [bold]specbench sweep --parameter budget --values 0.01,0.1[/bold]")(
    sweep
)
app.command(
    epilog="Example: [bold]specbench train --task mini-math --target-acceptance 0.85[/bold]"
)(train)
app.command(epilog="Example: [bold]specbench finetune-draft --task mini-math[/bold]")(
    finetune_draft
)
app.command(epilog="Example: [bold]specbench transfer --limit 100[/bold]")(transfer)
app.command(epilog="Example: [bold]specbench suite paper --dry-run[/bold]")(suite)
app.command(epilog="Example: [bold]specbench score results/my-run --metric rouge1,rougeL[/bold]")(
    score
)
app.command(epilog="Example: [bold]specbench bench --batch-size 1,8 --acceptance 0.6,0.8[/bold]")(
    bench
)
app.command(epilog="Example: [bold]specbench check --pair mini -m sd,diversed[/bold]")(check)
app.command(epilog="Example: [bold]specbench compare results/reference --at quality[/bold]")(
    compare
)
app.command(epilog="Example: [bold]specbench plot pareto results/reference[/bold]")(plot)
app.command(epilog="Example: [bold]specbench theory results/my-run --front-gap 20[/bold]")(theory)
app.command(epilog="Example: [bold]specbench table results/my-run --against paper[/bold]")(table)
app.command(epilog="Example: [bold]specbench summary results/ --output all.parquet[/bold]")(summary)
app.command(epilog="Example: [bold]specbench trace results/my-run --sample test-0 -m sd[/bold]")(
    trace
)
app.command(epilog="Example: [bold]specbench report results/my-run --output report.html[/bold]")(
    report
)
app.command("list", epilog="Example: [bold]specbench list methods[/bold]")(list_)
app.add_typer(pairs.app, name="pairs")


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
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        code = app(arguments, prog_name="specbench", standalone_mode=False) or 0
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
        code = _exit_code(error)
    sys.exit(code)


def _exit_code(error: Exception) -> int:
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
