#!/usr/bin/env python3
"""coverage.py BUILD DIRECTORY...: branches that were taken at least once, of those that there are, by file and by directory, of a
build with --coverage whose tests have run. `./x coverage` does all of it.

    coverage.py BUILD gen cache            a table; exit code 1 if a directory has less than 90 %
    coverage.py BUILD --lines gen/bind.c   the lines with branches that were never taken

Every branch that gcc counts is one, those of checks that cannot fail included."""
import glob
import json
import os
import subprocess
import sys

LEAST = 0.9
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def lines_of(build, source):
    """{line: [count of each branch]} of one source file."""
    layer = source.split("/")[0]
    folder = os.path.join(build, "CMakeFiles", f"fk_{layer}.dir", os.path.dirname(source))
    notes = os.path.join(folder, os.path.basename(source) + ".gcno")
    told = subprocess.run(["gcov", "--branch-probabilities", "--json-format", "--stdout", notes], capture_output=True, text=True,
                          check=True)
    out = {}
    for line in told.stdout.splitlines():
        for file in json.loads(line)["files"]:
            if os.path.realpath(os.path.join(build, file["file"])) != os.path.realpath(os.path.join(ROOT, source)):
                continue
            for entry in file["lines"]:
                if entry["branches"]:
                    out.setdefault(entry["line_number"], []).extend(branch["count"] for branch in entry["branches"])
    return out


def main():
    build, rest = sys.argv[1], sys.argv[2:]
    if rest[0] == "--lines":
        for source in rest[1:]:
            text = open(os.path.join(ROOT, source), encoding="utf-8").read().splitlines()
            for number, counts in sorted(lines_of(build, source).items()):
                if 0 in counts:
                    print(f"{source}:{number}: {counts.count(0)} of {len(counts)}: {text[number - 1].strip()}")
        return 0
    poor = False
    for directory in rest:
        taken = every = 0
        for path in sorted(glob.glob(os.path.join(ROOT, directory, "*.c"))):
            source = f"{directory}/{os.path.basename(path)}"
            counts = [count for line in lines_of(build, source).values() for count in line]
            hit = sum(count > 0 for count in counts)
            taken, every = taken + hit, every + len(counts)
            if counts:
                print(f"{source:30}{hit:6} of {len(counts):5} branches{hit / len(counts):8.1%}")
        poor |= taken < LEAST * every
        print(f"{directory + '/':30}{taken:6} of {every:5} branches{taken / every:8.1%}\n")
    return 1 if poor else 0


if __name__ == "__main__":
    sys.exit(main())
