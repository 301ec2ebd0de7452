"""Make the prompts of the tasks ``python-line``, ``python-block`` and ``python-docstring``.

They are excerpts of packages that no model of the pair ``python`` was trained on: the test split of
its recipe for ``...-test.jsonl.xz``, the split ``choice`` for ``...-train.jsonl.xz``. The last
table says how many of the lines to be completed occur in the training files.

    python tasks/make_python.py --output tasks
"""

from __future__ import annotations

import argparse
import ast
import json
import lzma
import random
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from pretraining.models import PRE_TOKENIZER
from pretraining.sources import CorpusSource, documented, read_splits

from specbench.engine.pairs import PAIRS_FILE
from specbench.schema import load_toml
from specbench.tasks.metrics.sandbox.statements import read_python

SIZES = {"test": 500, "train": 4000}
SPLITS = {"test": "test", "train": "choice"}
CONTEXT = 500  # characters before the place to continue from; longer ones make a CPU slow
SHORTEST, LONGEST = 10, 100  # characters of a line, and of what is left of it
MOST_LINES = 4  # of a block
TRIVIAL = 20  # characters; shorter lines are in every program


class Row(NamedTuple):
    """A line of a task's file; ``code_prefix`` is the function so far, in its classes."""

    id: str
    package: str
    prompt: str
    reference: str
    code_prefix: str = ""


def main() -> None:
    """Write all files, and print what was written."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path(__file__).parent)
    folder = parser.parse_args().output
    recipe = load_toml(PAIRS_FILE.parent / "python" / "recipe.toml", "recipe")
    splits = read_splits(recipe["packages"])
    trained = {line.strip() for source in splits["train"] for line in source.text.split("\n")}
    for task, make in MAKERS.items():
        for split, size in SIZES.items():
            rows = chosen(splits[SPLITS[split]], make, size)
            write(folder / f"python-{task}-{split}.jsonl.xz", rows)
            lines = [whole for row in rows for whole in completed(row)]
            seen = sum(line in trained for line in lines)
            shown = f"{seen} of {len(lines)} lines occur in training" if lines else ""
            print(f"python-{task} {split}: {len(rows)} prompts {shown}")
    for split in ("choice", "test"):
        lines = [line.strip() for source in splits[split] for line in source.text.split("\n")]
        lines = [line for line in lines if len(line) >= TRIVIAL]
        seen = sum(line in trained for line in lines)
        print(f"{split}: {seen} of {len(lines)} lines of {TRIVIAL} characters occur in training")


def chosen(sources: list[CorpusSource], make: Callable[..., Iterator[Row]], size: int) -> list[Row]:
    """Return distinct rows, from the packages in turn as long as they have some."""
    draw = random.Random(0)
    pools: dict[str, list[Row]] = defaultdict(list)
    distinct_texts: set[tuple[str, str]] = set()
    for source in sources:
        for row in make(source, draw):
            if (row.prompt, row.reference) not in distinct_texts:
                distinct_texts.add((row.prompt, row.reference))
                pools[row.package].append(row)
    for pool in pools.values():
        draw.shuffle(pool)
    rows: list[Row] = []
    while len(rows) < size and any(pools.values()):
        rows.extend(pool.pop() for pool in pools.values() if pool)
    draw.shuffle(rows)
    return rows[:size]


def line_rows(source: CorpusSource, draw: random.Random) -> Iterator[Row]:
    """Yield rests of lines: a place in every line at which a statement starts."""
    lines = source.text.split("\n")
    for number in statement_lines(source.text):
        line = lines[number].rstrip()
        if not SHORTEST <= len(line.strip()) <= LONGEST:
            continue
        # Between two tokens of any byte-level tokenizer.
        ends = [end for _, (_, end) in PRE_TOKENIZER.pre_tokenize_str(line)]
        places = [e for e in ends if not line[e - 1].isspace() and len(line) - e >= SHORTEST]
        if places:
            place = draw.choice(places)
            before = context(lines, number) + line[:place]
            yield Row(f"{source.path}:{number + 1}", source.package, before, line[place:])


def block_rows(source: CorpusSource, draw: random.Random) -> Iterator[Row]:
    """Yield the ends of paragraphs in functions, from 2 to ``MOST_LINES`` lines."""
    lines = source.text.split("\n")
    tree = read_python(source.text)[0]
    starts = set(statement_lines(source.text))
    for first, scopes in functions(tree) if tree else ():
        node = scopes[-1]
        possible = []
        for number in range(first + 1, node.end_lineno or 0):
            last = number
            while last < len(lines) and lines[last].strip():
                last += 1
            block = "".join("\n" + line.rstrip() for line in lines[number:last])
            fits = 2 <= last - number <= MOST_LINES and last <= (node.end_lineno or 0)
            if fits and number in starts and lines[number - 1].strip() and len(block) >= 40:
                possible.append((number, block))
        if possible:
            number, block = draw.choice(possible)
            before = context(lines, number).rstrip("\n")
            headers = [f"{' ' * s.col_offset}class _:\n" for s in scopes[:-1]]
            prefix = "".join(headers) + "\n".join(lines[first:number])
            if "\n".join(lines[first:number]) in before:
                place = f"{source.path}:{number + 1}"
                yield Row(place, source.package, before, block, prefix)


def docstring_rows(source: CorpusSource, draw: random.Random) -> Iterator[Row]:
    """Yield functions, to be summarised in the first sentence of their docstring."""
    for number, (code, sentence) in enumerate(documented(source.text)):
        if len(code) <= CONTEXT:
            yield Row(f"{source.path}:{number}", source.package, code, sentence)


MAKERS = {"line": line_rows, "block": block_rows, "docstring": docstring_rows}


def statement_lines(text: str) -> list[int]:
    """Return the lines, from 0, at which a statement other than a docstring starts."""
    tree = read_python(text)[0]
    starts = {
        node.lineno - 1
        for node in (ast.walk(tree) if tree else ())
        if isinstance(node, ast.stmt)
        and not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
    }
    return sorted(starts)


def functions(tree: ast.Module) -> Iterator[tuple[int, list[ast.stmt]]]:
    """Yield each function's first line, from 0, and the scopes around it, itself the last."""
    stack: list[tuple[ast.AST, list[ast.stmt]]] = [(tree, [])]
    while stack:
        node, scopes = stack.pop()
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                inner = [*scopes, child]
                if not isinstance(child, ast.ClassDef):
                    yield child.lineno - 1, inner
                stack.append((child, inner))


def context(lines: list[str], number: int) -> str:
    """Return the whole lines before a line, as many as fit, each with its line end."""
    whole_lines, size = [], 0
    for line in reversed(lines[:number]):
        size += len(line) + 1
        if size > CONTEXT:
            break
        whole_lines.append(line + "\n")
    return "".join(reversed(whole_lines))


def completed(row: Row) -> list[str]:
    """Return the lines that a row asks for, without short ones; none for a docstring."""
    if row.prompt.endswith('"""'):
        return []
    rest = [] if row.code_prefix else [row.prompt.rsplit("\n", 1)[-1] + row.reference]
    lines = [line.strip() for line in rest or row.reference.split("\n")]
    return [line for line in lines if len(line) >= TRIVIAL]


def write(path: Path, rows: list[Row]) -> None:
    """Write rows as compressed JSON lines, with the same bytes for the same rows."""
    text = "".join(json.dumps(row._asdict()) + "\n" for row in rows)
    path.write_bytes(lzma.compress(text.encode(), preset=9))


if __name__ == "__main__":
    main()
