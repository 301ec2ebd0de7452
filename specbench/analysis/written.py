"""The tables that a run writes beside its records: of samples, their summary, and its page."""

from __future__ import annotations

from pathlib import Path

from specbench.analysis.results import Results
from specbench.analysis.statistics.summary import summarise
from specbench.analysis.tables.table import markdown_line, to_markdown
from specbench.analysis.verdicts.compare import cautions
from specbench.analysis.verdicts.remarks import DOUBTS, remarks
from specbench.files import digits, write_atomically
from specbench.runs.columns import TIMED
from specbench.runs.frames import read_samples, without_repeats
from specbench.runs.records import DIGEST, SUMMARY, write_samples
from specbench.runs.run import read_run


def write_summary(folder: Path, run: Path | None = None) -> Results:
    """Write ``summary.csv`` and ``summary.md`` of a folder with tables; return its results.

    The page has the tables, cautions about the fronts, and doubts about the run. ``run`` is the
    folder of the run itself, if its tables are elsewhere.
    """
    decodes = read_samples(folder, timings=TIMED)
    summary = summarise(without_repeats(decodes))
    write_atomically(folder / SUMMARY, summary.to_csv(index=False, float_format=digits))
    run_id, recorded = str(summary["run_id"].iloc[0]), read_run(run or folder, required=False)
    results = Results.of(decodes=decodes, _summary=summary, _runs={run_id: [recorded]})
    parts = [to_markdown(*results.tables(further=True))]
    parts += [f"{markdown_line(text)}.\n" for text in cautions(results.comparison)]
    doubts = remarks(results.cells, {run_id: recorded}, DOUBTS)
    parts += [f"{markdown_line(text)}\n" for text in doubts]
    write_atomically(folder / DIGEST, "\n".join(parts))
    return results


def write_tables(folder: Path, into: Path | None = None) -> None:
    """Write all tables of a run from its records into it or a folder, if any was decoded."""
    if write_samples(folder, into):
        write_summary(into or folder, folder)
