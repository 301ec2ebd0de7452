"""Write the summaries of a run from its tables of samples."""

from pathlib import Path

from specbench.analysis.remarks import DOUBTS, remarks
from specbench.analysis.run_tables import summary_page
from specbench.analysis.summary import cells_of, summarise
from specbench.files import digits, write_atomically
from specbench.runs.columns import TIMED_BASELINE
from specbench.runs.frames import first_decodes, read_samples
from specbench.runs.records import DIGEST, SUMMARY, write_samples
from specbench.runs.run import read_run
from specbench.runs.table import markdown_line


def write_summary(folder: Path, run: Path | None = None) -> None:
    """Write ``summary.csv`` and ``summary.md`` from the tables of samples in a folder.

    Args:
        folder: Where the tables are.
        run: The run; None if it is the same folder.
    """
    timed = read_samples(folder, timings=[TIMED_BASELINE])
    samples = first_decodes(timed).drop(columns="timing", errors="ignore")
    summary = summarise(timed)
    write_atomically(folder / SUMMARY, summary.to_csv(index=False, float_format=digits))
    described = read_run(run or folder, required=False)
    doubts = remarks(cells_of(summary), {str(summary["run_id"].iloc[0]): described}, DOUBTS)
    page = [summary_page(samples, summary), *(f"{markdown_line(text)}\n" for text in doubts)]
    write_atomically(folder / DIGEST, "\n".join(page))


def write_tables(folder: Path, into: Path | None = None) -> None:
    """Write all tables of a run from its records, if any sample was decoded.

    Args:
        folder: The run.
        into: Where to write them; None writes them into the run.
    """
    if write_samples(folder, into):
        write_summary(into or folder, folder)
