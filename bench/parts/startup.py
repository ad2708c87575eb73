"""The first result of a fresh process, compiled, from the store and from a pack, beside FlexAttention and Triton
(bench/startup.py); host time of lookup, launch and the first call (bench/dispatch.c, built as build/tests/dispatch).
Results: startup.csv, dispatch.txt
"""
import os
import subprocess
import sys

HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def run(session):
    args = session.args
    where = [] if session.cuda else ["--device", "emu", "--gpu", "a100", "--spelling", "fwd fp16 d64"]
    repeat = "1" if args.dry else "2" if args.quick else "5"
    done = subprocess.run([sys.executable, os.path.join(HERE, "startup.py"), "--lib", args.lib, "--out", args.out,
                           "--repeat", repeat, *(["--only", "flashkiln"] if args.quick else []), *where])
    if done.returncode:
        raise RuntimeError(f"startup.py: exit code {done.returncode}")
    program = os.path.join(os.path.dirname(args.lib), "tests", "dispatch")
    if not os.path.exists(program):
        return session.say(f"  no {program}: host costs are not measured")
    told = subprocess.run([program], capture_output=True, text=True, timeout=120)
    print(told.stdout, end="", flush=True)
    with open(os.path.join(args.out, "dispatch.txt"), "w", encoding="utf-8") as file:
        file.write(told.stdout)
