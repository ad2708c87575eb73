"""The scripts of examples/python, as users start them: on a GPU where there is one, else tiny, by the emulator. What they print
of their own comparisons is looked at."""
import os
import re
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")
CUDA = torch.cuda.is_available()
TREE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def printed(script, *options):
    path = os.path.join(TREE, "python") + os.pathsep + os.environ.get("PYTHONPATH", "")
    done = subprocess.run([sys.executable, os.path.join(TREE, "examples", "python", script), *options], text=True,
                          capture_output=True, env={**os.environ, "PYTHONPATH": path}, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def numbers(pattern, text):
    return [float(x) for x in re.findall(pattern, text)]


def test_train_gpt2():
    text = printed("train_gpt2.py", "--steps", "21", "--dropout", "0", "--compare", "eager")
    assert max(numbers(r"in the mean, (\S+) at most", text)) < (0.05 if CUDA else 1e-4)
    losses = dict(re.findall(r"flashkiln  step +(\d+)  loss (\S+)", text))
    assert float(losses["20"]) < float(losses["0"]) - 1


def test_train_gpt2_with_dropout():
    losses = numbers(r"flashkiln  step +\d+  loss (\S+)", printed("train_gpt2.py", "--steps", "21"))
    assert losses[-1] < losses[0] - 1


def test_hugging_face():
    pytest.importorskip("transformers", minversion="5.0")
    text = printed("hugging_face.py")
    apart = numbers(r"(?:logits differ|a gradient) by ([\d.e+-]+\d)", text)
    assert len(apart) == 3 and max(apart) < (0.1 if CUDA else 1e-5)
    assert CUDA or "100% of the generated tokens are the same" in text
    assert re.search(r"\d  taken by FlashKiln", text) and re.search(r" 0  left to PyTorch", text)


def test_custom_mask():
    text = printed("custom_mask.py")
    apart = numbers(r"differs by (\S+)", text)
    assert len(apart) == 10 and max(apart) < (1e-2 if CUDA else 1e-5)
    assert "never loaded" in text and "BadProblem" in text


def test_long_context():
    shares = numbers(r"(\d+\.\d)%\s+\d+\.\d+ ms", printed("long_context.py", *[] if CUDA else ["--tokens", "256"]))
    assert len(shares) == 7 and shares[0] > 50
    assert all(0 < share < shares[0] for share in shares[1:])
