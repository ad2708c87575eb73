"""HBM's bytes as ncu's DRAM counters have them."""
import csv
import io
import os
import shutil

METRICS = ["dram__bytes_read.sum", "dram__bytes_write.sum"]
# As in use: caches and clocks are left as they are.
OPTIONS = ["--cache-control", "none", "--clock-control", "none", "--metrics", ",".join(METRICS), "--csv", "--print-units", "base"]


def program():
    """The path of ncu, or None."""
    return shutil.which("ncu") or next((p for p in ("/usr/local/cuda/bin/ncu",) if os.path.exists(p)), None)


def table(text):
    """The rows of ncu's table, which follows lines of others."""
    lines = text.splitlines()
    begin = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), len(lines))
    return csv.DictReader(io.StringIO("\n".join(lines[begin:])))


def add(sums, row):
    """To [MB read, MB written]."""
    if row["Metric Name"] in METRICS:
        sums[METRICS.index(row["Metric Name"])] += float(row["Metric Value"].replace(",", "")) / 1e6
