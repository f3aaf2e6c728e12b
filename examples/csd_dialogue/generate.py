"""Write synthetic dialogues: python examples/csd_dialogue/generate.py --dialogues 200 --seed 0 -o dialogues.jsonl."""

from __future__ import annotations

import argparse

from csd.generator import generate
from csd.schema import write_dialogues

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dialogues", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("-o", "--out", required=True)
    options = parser.parse_args()
    write_dialogues(generate(options.dialogues, options.seed), options.out)
