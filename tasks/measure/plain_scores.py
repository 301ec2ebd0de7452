"""Compare the pass@1 of a run's texts with plain Python, which runs them without a sandbox.

    python tasks/measure/plain_scores.py RUN

It executes code of models with your rights: use a machine where that does no harm. Every text that
has another score is printed.
"""

import argparse
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from specbench.runs.model import OK
from specbench.runs.records import latest_records, read_examples
from specbench.tasks.example import Example
from specbench.tasks.metrics.code import program_of

SECONDS = 20  # until a program is ended


def passes(program: str, example: Example) -> bool:
    """Return whether a program and the example's tests run without an error."""
    command = [sys.executable, "-I", "-c", "\n".join((program, *example.tests))]
    try:
        return not subprocess.run(command, capture_output=True, timeout=SECONDS).returncode
    except subprocess.TimeoutExpired:
        return False


def main() -> None:
    """Print the texts with another score, and how many texts there are."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("run", type=Path)
    run = parser.parse_args().run
    (examples,) = read_examples(run).values()
    samples = [record for record in latest_records(run) if record.status == OK]
    scores = {(s.sample_id, s.text or ""): (s.scores or {})["pass@1"] for s in samples}

    def scored_plainly(key: tuple[str, str]) -> bool:
        sample_id, text = key
        return passes(program_of(text, examples[sample_id]), examples[sample_id])

    different = 0
    with ThreadPoolExecutor() as pool:
        for (sample_id, text), passed in zip(scores, pool.map(scored_plainly, scores), strict=True):
            if passed != scores[sample_id, text]:
                different += 1
                print(f"{sample_id}: {scores[sample_id, text]}, plain Python {passed}\n{text}\n")
    print(f"{different} of {len(scores)} different texts have another score")


if __name__ == "__main__":
    main()
