"""The wheel that pip builds from the source tree: what it holds, and a first result of it in a fresh environment, far from
the tree. Skipped where PyPI is out of reach, since building needs scikit-build-core from there."""
import os
import re
import subprocess
import venv
import zipfile

import pytest

TREE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

FIRST_RESULT = """
import sys
import flashkiln, numpy
assert flashkiln.__file__.startswith(sys.prefix), flashkiln.__file__
q, k, v = numpy.random.default_rng(0).standard_normal((3, 1, 40, 2, 16)).astype(numpy.float16)
o = flashkiln.attention(q, k, v, causal=True)
s = numpy.einsum("bqhd,bkhd->bhqk", q.astype(float), k.astype(float)) / 16 ** 0.5
p = numpy.exp(numpy.where(numpy.tri(40, dtype=bool), s, -numpy.inf))
expected = numpy.einsum("bhqk,bkhd->bqhd", p / p.sum(-1, keepdims=True), v.astype(float))
assert o.shape == q.shape and o.dtype == q.dtype
assert abs(o - expected).max() < 4e-3, abs(o - expected).max()
print("first result")
"""


def output(*command, **environment):
    """What a command prints, in an environment without what points to the tree."""
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "FLASHKILN_LIBRARY")}
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd="/",
                          env={**kept, **environment})
    if done.returncode:
        raise RuntimeError(done.stdout)
    return done.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("wheel")


@pytest.fixture(scope="module")
def pip(folder):
    """A pip that has what the build needs."""
    with open(os.path.join(TREE, "pyproject.toml"), encoding="utf-8") as f:
        requires = re.search(r'^requires = \["(.*)"\]$', f.read(), re.M).group(1)
    home = folder / "builder"
    venv.create(home, with_pip=True)
    command = [str(home / "bin" / "python"), "-m", "pip", "-q", "--disable-pip-version-check"]
    try:
        output(*command, "install", "--retries", "1", requires)
    except RuntimeError as failure:
        pytest.skip(f"pip cannot install {requires}: {str(failure).strip().splitlines()[-1]}")
    return command


@pytest.fixture(scope="module")
def wheel(folder, pip):
    output(*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", str(folder / "dist"), TREE,
           PATH=os.path.dirname(pip[0]) + os.pathsep + os.environ["PATH"])
    found, = (folder / "dist").iterdir()
    return found


def test_holds_the_package_the_library_and_nothing_else(wheel):
    with open(os.path.join(TREE, "include", "flashkiln.h"), encoding="ascii") as f:
        version = ".".join(re.findall(r"^#define FK_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)$", f.read(), re.M))
    assert re.fullmatch(rf"flashkiln-{re.escape(version)}-py3-none-linux_\w+\.whl", wheel.name), wheel.name
    package = os.path.join(TREE, "python")
    modules = {os.path.relpath(os.path.join(folder, name), package)
               for folder, _, names in os.walk(package) for name in names
               if name.endswith((".py", ".pyi", "py.typed"))}
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    names.discard("flashkiln/liblua5.4.so.0")  # there where Lua could not be linked in
    assert names == modules | {"flashkiln/libflashkiln.so", "flashkiln/flashkiln.h"}
    assert wheel.stat().st_size < 2 << 20, f"{wheel.stat().st_size} bytes"
    print(f"{wheel.name}: {wheel.stat().st_size} bytes")


def test_names_no_folder_of_the_machine_that_built_it(wheel, folder):
    archive = zipfile.ZipFile(wheel)
    for name in archive.namelist():
        for path in (TREE, str(folder), os.path.expanduser("~")):
            assert path.encode() not in archive.read(name), f"{name} holds {path}"


def test_exports_its_own_functions_only(wheel, folder):
    library = zipfile.ZipFile(wheel).extract("flashkiln/libflashkiln.so", folder / "unpacked")
    exported = [line.split()[-1] for line in output("nm", "-D", "--defined-only", library).splitlines()]
    assert "fk_execute" in exported
    assert [name for name in exported if not name.startswith("fk_")] == []
    searched = re.findall(r"\((?:RPATH|RUNPATH)\).*\[(.*)\]", output("readelf", "-d", library))
    assert searched == ["$ORIGIN"]


def test_gives_a_first_result_in_a_fresh_environment(wheel, folder, pip):
    home = folder / "fresh"
    venv.create(home, with_pip=False)
    python = str(home / "bin" / "python")
    output(*pip, "--python", python, "install", f"{wheel}[numpy]")
    told = output(python, "-W", "ignore", "-c", FIRST_RESULT, FLASHKILN_CACHE_DIR=str(folder / "cache"))
    assert told == "first result\n"
