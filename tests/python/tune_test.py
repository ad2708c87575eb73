"""flashkiln.tune on the emulator: what is found is what kernels of those sizes are made by."""
import pytest

import flashkiln
from flashkiln import _runtime


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FLASHKILN_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("FLASHKILN_TUNING", raising=False)
    return tmp_path


def test_what_is_found_is_used(cache):
    shape = (1, 2, 2, 64, 64)
    trials = flashkiln.tune("fwd fp16 d72 causal", shape, device="emu", plan_for="t4", budget=3)
    best = trials[0]
    assert best["state"] == "timed" and best["us"] > 0 and best["samples"] > 0 and 0 < best["error"] <= 1
    assert sum(trial["model_choice"] for trial in trials) == 1
    assert [path.name for path in cache.glob("*.jsonl")] == ["tune-emulator-of-tesla-t4.jsonl"]
    with pytest.warns(RuntimeWarning):
        device = _runtime.Device("emu", "t4")
    general = device.kernel("fwd fp16 d72 causal")
    sized = device.kernel("fwd fp16 d72 causal", shape)
    assert sized[2].plan.block_m == best["plan"]["block_m"] and sized[2].plan.block_n == best["plan"]["block_n"]
    assert b"own record" in sized[2].plan.reason and general[2].plan.chosen == 1
    assert device.kernel("fwd fp16 d72 causal", shape) is sized
    assert device.kernel("fwd fp16 d72 causal", (1, 2, 2, 4096, 4096)) is general


def test_the_watcher_ends_the_search(cache):
    seen = []

    def watch(best, alive, seconds):
        seen.append((best, alive, seconds))
        return best is not None

    trials = flashkiln.tune("fwd fp16 d64", (1, 2, 2, 64, 64), device="emu", plan_for="t4", watch=watch, dry_run=True, jobs=-1, budget=30)
    assert seen and trials[0]["state"] == "timed"
    assert any(trial["state"] == "skipped" and "budget" in trial["reason"] for trial in trials)
    assert not list(cache.glob("*.jsonl"))


def test_the_watchers_exception_ends_the_search(cache):
    def watch(best, alive, seconds):
        raise KeyboardInterrupt("enough")

    with pytest.raises(KeyboardInterrupt, match="enough"):
        flashkiln.tune("fwd fp16 d64", (1, 2, 2, 64, 64), device="emu", plan_for="t4", watch=watch, dry_run=True, jobs=-1, budget=60)
    assert not list(cache.glob("*.jsonl"))


def test_what_is_refused(cache):
    with pytest.raises(ValueError, match="rigor is 'wild'"):
        flashkiln.tune("fwd fp16 d64", device="emu", rigor="wild")
    with pytest.raises(flashkiln.BadArgument, match="budget_ms"):
        flashkiln.tune("fwd fp16 d64", device="emu", budget=-1)
    for shape, text in (((1, 2, 3), r"shape is \(1, 2, 3\); it must be seqlen, or five ints: batch, num_heads_q"),
                        ((1, 2, 2, 64, 64, 5), "it must be seqlen, or five ints"), (64.5, "shape is 64.5; it must be"),
                        ((1, 2, 2, 64, "64"), "it must be seqlen, or five ints"), (0, "shape: seqlen is 0; it must be from 1 to"),
                        ((1, -1, 2, 64, 64), "shape: num_heads_q is -1; it must be from 0"), (2**40, "to 1073741824")):
        with pytest.raises(flashkiln.BadArgument, match=text):
            flashkiln.tune("fwd fp16 d64", shape, device="emu")
    with pytest.raises(flashkiln.BadProblem):
        flashkiln.tune("fwd fp17 d64", device="emu")
