"""Decode the cells in which prices are compared with recorded rounds: two sets of 40.

    python tests/benchmarks/price_cells.py first|second FOLDER

Each set was fixed before any of its cells was decoded; ``price_agreement.py`` compares them.
"""

import subprocess
import sys

MINI = "--pair mini -t mini-math,mini-code,mini-headline,mini-news"
LINE = "--pair python -t python-line"
BLOCK, DOCSTRING = "--pair python -t python-block", "--pair python -t python-docstring"
SETS = {
    "first": {
        "mini-T1": f"{MINI} --seed 3 --temperature 1 -m sd --draft-length 2,5 "
        "--drafter model,greedy",
        "mini-T1-policies": f"{MINI} --seed 3 --temperature 1 -m sd --draft-length 8 "
        "--drafting confidence:0.4,svip:0.6,adaedl:0.4",
        "mini-T04": f"{MINI} --seed 3 --temperature 0.4 -m sd --draft-length 3,8",
        "python-T04": f"{LINE} --seed 3 --temperature 0.4 -m sd --draft-length 3,8",
        "python-T1": f"{LINE} --seed 3 --temperature 1 -m sd,block --draft-length 5",
    },
    "second": {
        "mini-T1": f"{MINI} --seed 7 --temperature 1 -m sd,block,match --draft-length 4",
        "mini-T1-greedy": f"{MINI} --seed 7 --temperature 1 -m sd --draft-length 3 "
        "--drafter greedy",
        "mini-T1-policies": f"{MINI} --seed 7 --temperature 1 -m sd --draft-length 6 "
        "--drafting svip:0.8,p-min:0.5",
        "mini-T04": f"{MINI} --seed 7 --temperature 0.4 -m sd --draft-length 2,5",
        "python-T04": f"{BLOCK} --seed 7 --temperature 0.4 -m sd --draft-length 2,5 "
        "--drafter model,greedy",
        "python-T1": f"{DOCSTRING} --seed 7 --temperature 1 -m sd,block,match --draft-length 3",
        "python-T1-lookup": f"{DOCSTRING} --seed 7 --temperature 1 -m sd --draft-length 3 "
        "--drafter prompt-lookup",
    },
}


def main(name, folder):
    command = [sys.executable, "-m", "specbench", "run", "-n", "60", "--batch-size", "20"]
    for run, options in SETS[name].items():
        output = ["--output", f"{folder}/{run}", "--no-progress"]
        subprocess.run([*command, *options.split(), *output], check=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
