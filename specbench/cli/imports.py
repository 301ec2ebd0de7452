"""``specbench import``: results of other tools as a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from specbench.cli.generate import grouped
from specbench.cli.measure import show_run
from specbench.cli.options import JsonOutput, output_option
from specbench.cli.output import new_folder, next_step, note


class ImportOptions(JsonOutput):
    """Where the run goes."""

    output: Path | None = output_option("Folder to write, new or empty.", "results/<time>-import")


@grouped
def import_(
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="[NAME=]FILE...",
            help="Files, each with the name of its arm; by default its own.",
        ),
    ],
    asked: ImportOptions,
) -> None:
    """Make a run of what other tools measured; table, compare and plot then read it.

    Read are `vllm bench serve --save-result --save-detailed`, aiperf's profile_export.jsonl,
    --output of llama.cpp's speed-bench and lm-eval's samples_*.jsonl. Files are the arms of the
    run, paired by prompt. What a file does not tell stays blank.
    """
    from specbench.analysis.write import write_summary
    from specbench.imports.run import pair_by_prompt, read_arms, write_run

    arms = read_arms(files)
    note(*pair_by_prompt(arms))
    with new_folder(asked.output, "import") as folder:
        write_run(folder, arms, write_summary)
    show_run(folder, asked.as_json)
    if len({arm.name for arm in arms}) > 1:
        next_step(f"specbench compare {folder} --against {arms[0].name} --margin 2")
