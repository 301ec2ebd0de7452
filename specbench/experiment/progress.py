"""A progress bar on stderr: what runs now, how far it is, how well it goes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from specbench.analysis.labels import method_label

Record = Mapping[str, Any]
Sums = defaultdict[str, float]
Report = Callable[[Record], None]

_SUMMED = ("accepted", "proposed", "output_tokens", "prefill_seconds", "decode_seconds")


def quiet_libraries(downloads: bool) -> None:
    """Keep the bars and retry messages of the models' libraries off the screen.

    What finally fails comes back as an error, and that is told in one line.

    Args:
        downloads: Leave the bars of downloads, which may take long.
    """
    import transformers
    from huggingface_hub.utils.logging import set_verbosity_error
    from huggingface_hub.utils.tqdm import are_progress_bars_disabled, enable_progress_bars
    from transformers.utils.logging import disable_progress_bar

    set_verbosity_error()
    # What a prompt is too long for is checked before it is decoded.
    transformers.logging.set_verbosity_error()
    wanted = downloads and not are_progress_bars_disabled()
    disable_progress_bar()  # both those of loading and those of downloads
    if wanted:
        enable_progress_bars()


@contextmanager
def progress_bar(total: int, shown: bool, console: Console | None = None) -> Iterator[Report]:
    """Show a progress bar while the context lasts.

    Args:
        total: Samples in all.
        shown: False shows nothing; nothing is shown either where stderr is no terminal.
        console: Where to draw; stderr by default.

    Yields:
        A function to call with every finished sample's record.
    """
    console = console or Console(stderr=True)
    if not (shown and console.is_terminal):
        yield lambda record: None
        return
    columns = (
        TextColumn("{task.fields[task]}"),
        TextColumn("[bold]{task.description}"),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TextColumn("{task.fields[figures]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        line = bar.add_task("loading the models", total=total, task="", figures="")
        totals: defaultdict[tuple[str, str], Sums] = defaultdict(lambda: defaultdict(float))

        def report(record: Record) -> None:
            label = method_label(record)
            sums = totals[record["task"], label]
            for name in _SUMMED:
                sums[name] += record.get(name) or 0
            bar.update(
                line, advance=1, description=label, task=record["task"], figures=_figures(sums)
            )

        yield report


def _figures(sums: Sums) -> str:
    """Acceptance and speed so far, of the cell whose sums these are."""
    parts = []
    if sums["proposed"]:
        parts.append(f"acceptance {sums['accepted'] / sums['proposed']:.0%}")
    seconds = sums["prefill_seconds"] + sums["decode_seconds"]
    if seconds:
        parts.append(f"{sums['output_tokens'] / seconds:.0f} tokens/s")
    return ", ".join(parts)
