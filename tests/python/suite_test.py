"""The suite of benchmarks on the CPU, tiny, by the emulator: every part runs and leaves rows, a part that is there is not run
again, tables and plots come out of the rows; the tasks' data are what they say."""
import contextlib
import csv
import os
import subprocess
import sys
import time

import pytest

torch = pytest.importorskip("torch")

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BENCH = os.path.join(ROOT, "bench")
ROWS = {"tables": "tables", "losses": "losses", "arena": "arena", "traffic": "traffic", "blocks": "sparsity",
        "modelled": "modelled"}


@pytest.fixture(autouse=True)
def path(monkeypatch):
    monkeypatch.syspath_prepend(BENCH)


def suite(folder, *args):
    done = subprocess.run([sys.executable, "-B", os.path.join(BENCH, "suite.py"), "--dry", "--out", str(folder), "--lib",
                           os.environ["FLASHKILN_LIBRARY"], *args], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def rows(folder, name):
    with open(os.path.join(folder, name + ".csv"), newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("suite")
    parts = list(ROWS)
    if not installed("transformers"):
        parts.remove("losses")
    suite(folder, "--only", ",".join(parts), "--dropout", "0")
    return folder


def installed(name):
    try:
        __import__(name)
        return True
    except ImportError:
        return False


@pytest.mark.parametrize("part", ROWS)
def test_part(results, part):
    if part == "losses" and not installed("transformers"):
        pytest.skip("without transformers")
    found = rows(results, ROWS[part])
    assert found and all(r["date"] and r["gpu"] for r in found)
    if "median_us" in found[0]:
        ours = [r for r in found if r.get("name", "").startswith("flashkiln") or part == "blocks"]
        assert ours and all(float(r["median_us"]) > 0 for r in ours)
    if part == "tables":  # outputs were compared where they can be
        assert any(r["max_diff"] and float(r["max_diff"]) < 1e-4 for r in found if r["name"].startswith("flashkiln"))
        assert any("takes no mask" in r["note"] for r in found)


def test_arena_goes_on_from_the_picture_before(results):
    found = {(r["task"], r["attention"]): r["start"] for r in rows(results, "arena")}
    assert found == {(task, which): start for task, start in (("listops", ""), ("path-32", ""), ("path-64", "path-32"))
                     for which in ("dense", "butterfly")}


def test_training_steps(tmp_path):
    for name in ("transformers", "timm"):
        pytest.importorskip(name)
    suite(tmp_path, "--only", "steps")
    for model in ("gpt2-small", "bert-large", "vit-base"):
        found = {r["name"]: float(r["loss"]) for r in rows(tmp_path, "steps") if r["model"] == model}
        floor = found.pop("no-attention", None)
        assert found.keys() == {"eager", "sdpa", "flashkiln"} and max(found.values()) - min(found.values()) < 0.2
        assert (floor is None) == (model == "vit-base")


def test_two_devices(results, tmp_path):
    """Side by side, the tables in two pieces: the same cases in the same order as in one."""
    told = suite(tmp_path, "--only", "tables,modelled", "--devices", "0,1")
    assert "tables 64:" in told and "tables 80:" in told

    assert cases(tmp_path) == cases(results) and rows(tmp_path, "modelled")
    assert "there already: tables" in suite(tmp_path, "--only", "tables", "--devices", "0,1")


def cases(folder):
    return [(r["seqlen"], r["dropout"], r["pass"], r["name"], r["note"]) for r in rows(folder, "tables")]


def test_no_time(results, tmp_path):
    """The first case of a part runs in any case, the others are left out, the part is not taken for done, and the next run goes on
    there: not for want of a file's end that was half written."""
    told = suite(tmp_path, "--only", "tables", "--minutes", "0.001")
    assert "left out: d16 80 x 2 causal" in told and "cut short: tables" in told
    assert {r["seqlen"] for r in rows(tmp_path, "tables")} == {"64"}
    with open(tmp_path / "tables.csv", "a", encoding="utf-8") as file:
        file.write("half a row")
    told = suite(tmp_path, "--only", "tables")
    assert "d16 64" not in told and "cut short" not in told and cases(tmp_path) == cases(results)


def test_arena_goes_on_with_its_weights(tmp_path):
    suite(tmp_path, "--only", "arena", "--minutes", "0.001")
    assert {r["task"] for r in rows(tmp_path, "arena")} == {"listops"}
    suite(tmp_path, "--only", "arena")
    assert {(r["task"], r["start"]) for r in rows(tmp_path, "arena")} == {("listops", ""), ("path-32", ""), ("path-64", "path-32")}


def run_jobs(jobs, devices, seconds):
    """(what was shown, names in the order in which they began)"""
    import schedule
    shown, begun = [], []
    schedule.run(jobs, devices, time.monotonic() + seconds, shown.append, lambda job: begun.append(job.name))
    return shown, begun


def test_schedule(tmp_path):
    """Longest first, on both devices; what must be alone comes last, then what was cut short; every way to end is told apart."""
    import schedule

    def work(name, code=0, last=0.0):
        def told(until):
            begin = time.monotonic()
            os.write(1, f"{name} on {os.environ['CUDA_VISIBLE_DEVICES']}\n".encode())
            time.sleep(last)
            if not (tmp_path / name).exists():
                (tmp_path / name).write_text(f"{begin} {time.monotonic()}", encoding="ascii")
            sys.exit(code)
        return told
    jobs = [schedule.Job("host", "host", 9, work("host"), alone=True), schedule.Job("short", "short", 1, work("short", last=0.2)),
            schedule.Job("long", "long", 5, work("long", last=0.5)), schedule.Job("cut", "cut", 3, work("cut", schedule.CUT)),
            schedule.Job("bad", "bad", 2, work("bad", 7))]
    shown, begun = run_jobs(jobs, ["0", "1"], 60)
    assert begun == ["long", "cut", "bad", "short", "host", "cut"]
    assert {job.name: job.state for job in jobs} == {"long": "done", "short": "done", "host": "done", "cut": "cut short",
                                                     "bad": "exit code 7"}
    assert [job.name for job in jobs if job.failed] == ["bad"]
    assert "long: long on 0" in shown and "cut: cut on 1" in shown
    ended = [float((tmp_path / name).read_text().split()[1]) for name in ("long", "short", "cut", "bad")]
    assert float((tmp_path / "host").read_text().split()[0]) >= max(ended)


def test_schedule_ends_what_hangs(monkeypatch):
    import schedule
    monkeypatch.setattr(schedule, "GRACE_S", 0.2)
    hangs = schedule.Job("hangs", "hangs", 1, lambda until: time.sleep(60))
    after = schedule.Job("after", "after", 8, lambda until: os.write(1, f"left {until > time.monotonic()}\n".encode()))
    shown, _ = run_jobs([hangs, after], [None], 10)
    assert hangs.state == "out of time" and hangs.failed and hangs.took < 10
    assert after.state == "done" and "left True" in shown


def test_schedule_goes_on(monkeypatch, tmp_path):
    """One that is cut short has what the others left, once, behind all of them; nothing if too little is left."""
    import schedule

    def work(until):
        tries = tmp_path / "tries"
        tries.write_text((tries.read_text() if tries.exists() else "") + f"{until - time.monotonic():.0f} ")
        sys.exit(schedule.CUT)
    jobs = [schedule.Job("cut", "cut", 10, work), schedule.Job("quick", "quick", 40, lambda until: None)]
    _, begun = run_jobs(jobs, [None], 60)
    assert begun == ["cut", "quick", "cut"] and jobs[0].state == "cut short"
    first, second = map(int, (tmp_path / "tries").read_text().split())
    assert 18 <= first <= 20 and 50 <= second <= 60
    monkeypatch.setattr(schedule, "LEAST_S", 100)
    assert run_jobs([schedule.Job("cut", "cut", 1, work)], [None], 60)[1] == ["cut"]


def test_shares():
    """What those behind it do not need, in all lanes, but no more than there is; if all need more than that, in proportion."""
    from schedule import share
    assert share(100, 1, 10, False, [(30, False), (10, False)], []) == 60
    assert share(50, 2, 10, False, [(30, False), (10, False)], [50]) == 10
    assert share(40, 1, 10, False, [(30, False), (40, False)], []) == 5
    assert share(30, 2, 10, False, [(20, True)], []) == 20 and share(30, 2, 10, True, [(20, False)], []) == 20
    assert share(100, 2, 10, False, [], []) == 100 and share(-5, 1, 10, False, [], []) == 0
    assert share(50, 1, 0, False, [], []) == 50 and share(50, 1, 0, False, [(60, False)], []) == 0


def test_what_is_there_is_kept(results):
    assert "there already" in suite(results, "--only", "modelled")
    assert "there already" not in suite(results, "--only", "modelled", "--again")


def test_tables(results, tmp_path):
    import readme
    for name in ("tables", "arena", "traffic", "modelled"):
        assert readme.TABLES[name](str(results)).count("|") > 20
    text = tmp_path / "README.md"
    text.write_text("before\n<!-- suite:modelled -->\nold\n<!-- /suite -->\nafter\n", encoding="utf-8")
    readme.rewrite(str(text), str(results))
    new = text.read_text(encoding="utf-8")
    assert "old" not in new and "| t4 |" in new and new.startswith("before") and new.endswith("after\n")


def test_plots(results):
    pytest.importorskip("matplotlib")
    suite(results, "--plot")
    assert {"tables.svg", "arena.svg", "modelled.svg", "roofline.svg"} <= set(os.listdir(results))


def value(tokens):
    """Of a ListOps expression, and what is left of the tokens."""
    from parts import arena_data
    first, rest = tokens[0], tokens[1:]
    if first < 10:
        return first, rest
    values = []
    while rest[0] != arena_data.CLOSE:
        one, rest = value(rest)
        values.append(one)
    return arena_data.APPLY[first - arena_data.DIGITS](values), rest[1:]


def test_listops():
    from parts import arena_data
    tokens, labels = arena_data.listops(3, 20, 256)
    for line, label in zip(tokens.tolist(), labels):
        found, rest = value(line)
        assert found == label and set(rest) <= {arena_data.PAD} and len(line) - len(rest) >= 64


@pytest.mark.parametrize("size", [32, 64, 128])
def test_pathfinder(size):
    """Both kinds of one drawing, equal pictures from equal seeds, and not so many points that everything touches."""
    from parts import arena_data
    pictures, labels = arena_data.pathfinder(5, 64, size)
    again, _ = arena_data.pathfinder(5, 64, size)
    assert (pictures == again).all() and (labels == [0, 1] * 32).all()
    assert 0.005 < (pictures > 0).mean() < 0.3
    apart = (pictures[::2] != pictures[1::2]).sum(1)  # no more than a disc each
    assert apart.all() and apart.max() < 2 * 3.5 * max(2.5, size / 32) ** 2


def test_ncu_table():
    from parts import traffic
    cells = [("0", "spin_kernel", "read", "32"), ("0", "spin_kernel", "write", "32"), ("1", "a, b", "read", "1,000,000"),
             ("1", "a, b", "write", "500,000"), ("2", "c", "read", "2,000,000"), ("3", "void spin_kernel()", "read", "0"),
             ("4", "a, b", "read", "7,000,000")]
    table = ['"ID","Kernel Name","Metric Name","Metric Unit","Metric Value"']
    table += [f'"{i}","{kernel}","dram__bytes_{metric}.sum","byte","{value}"' for i, kernel, metric, value in cells]
    assert traffic.totals("==PROF== something\n" + "\n".join(table)) == [[3.0, 0.5], [7.0, 0.0]]
    assert traffic.totals("no permission") == []


class Stopwatch:
    """What round_robin needs of a CUDA event, by a clock that launches move."""
    now = 0.0

    def __init__(self, enable_timing=False):
        self.at = None

    def record(self):
        self.at = Stopwatch.now

    def query(self):
        return True

    def elapsed_time(self, other):
        return other.at - self.at


def test_round_robin():
    """Turns in alternating order; a contender's own launches, its settling launch, what it spins for and what it runs in."""
    from types import SimpleNamespace as Namespace
    from parts.session import Call
    import timing
    log = []

    def launch(name, ms):
        log.append(name)
        Stopwatch.now += ms

    @contextlib.contextmanager
    def running():
        log.append("(")
        yield
        log.append(")")
    fake = Namespace(cuda=Namespace(Event=Stopwatch, _sleep=lambda cycles: log.append(cycles)))
    quick, slow = Call("a", lambda: launch("a", 1.0), running), Call("b", lambda: launch("b", 50.0))
    quick.launches, quick.ahead, slow.settles = 2, 77, False
    times = timing.round_robin(fake, [quick, slow], rounds=2, launches=1, warm_ms=0)
    turn = ["(", "a", 77, "a", "a", ")"]
    assert log == [*turn, "b", "b", *turn]
    assert times == {"a": [1000.0] * 4, "b": [50000.0] * 2}
