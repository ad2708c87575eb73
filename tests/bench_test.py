#!/usr/bin/env python3
"""The benchmarks, as far as they go without a GPU: every script says what it does, the structs read from the header are
those of the library, and tables come out of a CSV file.

    bench_test.py LIBFLASHKILN.so
"""
import glob
import os
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BENCH = os.path.join(ROOT, "bench")
sys.dont_write_bytecode = True
sys.path.insert(0, BENCH)

ROWS = """case,name,seqlen,median_us,tflops
fwd bf16 d64 full,sdpa-flash,1024,200,100
fwd bf16 d64 full,flashkiln,1024,160,125
fwd bf16 d64 full,sdpa-flash,2048,400,100
fwd bf16 d64 full,flashkiln,2048,200,200
"""


def run(script, *args):
    done = subprocess.run([sys.executable, "-B", os.path.join(BENCH, script), *args], capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def check_scripts():
    for path in sorted(glob.glob(os.path.join(BENCH, "*.py"))):
        script = os.path.basename(path)
        with open(path, encoding="utf-8") as f:
            text = f.read()
        compile(text, path, "exec")
        if "argparse" in text or "arguments(" in text and "__main__" in text:
            code, said = run(script, "--help")
            assert code == 0 and ("usage" in said or "__main__" not in text), f"{script} --help: {code}\n{said}"


def check_structs(path):
    from library import Library
    library = Library(path)
    problem = library.problem("bwd bf16 d64 alibi causal grad=slope")
    assert problem.head_dim == 64 and library.arrays(problem) == ["slope"]
    plans = library.plans(problem, "a100")
    assert plans[0].chosen == 1 and plans[0].legal == 1 and plans[0].smem_bytes > 0
    assert plans[0].model_us <= plans[1].model_us or not plans[1].legal
    tiles = library.tiles(library.problem("fwd fp16 d64 window(64,0)"), plans[0], library.shape(1, 1, 4096))
    assert tiles.empty > 0 and tiles.partial > 0


def check_tables():
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "forward.csv")
        with open(path, "w", encoding="ascii") as f:
            f.write(ROWS)
        code, said = run("tables.py", path)
    assert code == 0 and "| fwd bf16 d64 full | 125 (1.25) | 200 (2.00) | **1.58** |" in said, said


def check_shares():
    from problems import packed_share
    assert packed_share([128, 128], 64, 128) == 0.5
    assert packed_share([100, 156], 64, 128) == (2 * 1 + 3 * 2) * 64 * 128 / 256 ** 2  # tiles begin with each sequence


def main():
    check_scripts()
    check_structs(sys.argv[1])
    check_tables()
    check_shares()
    return 0


if __name__ == "__main__":
    sys.exit(main())
