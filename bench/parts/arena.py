"""Tasks in the manner of Long Range Arena (arena_data.py): a small transformer with dense and with butterfly block-sparse
attention, each for the same seconds: loss and accuracy against steps and time. ListOps of 2,048 tokens, Pathfinder pictures
of 32 to 256 pixels a side (Path-X: 16,384 tokens; Path-256: 65,536). 32 pixels and Path-X begin anew, 64 and 256 with the weights of
these but for the last layer, so that each begins with a guess's loss. No example is seen twice, so that a training loss that falls is
learning, not memory; whether it does is told from the first and the last tenth of a training (plots.trend). Results: arena.csv
"""
import concurrent.futures
import multiprocessing
import os
import time
from typing import NamedTuple

from parts import arena_data, arena_model
from plots import trend


class Task(NamedTuple):
    kind: str
    size: int   # tokens, or pixels a side
    batch: int
    seconds: float  # of training
    quick: float    # in a quick run; 0: not then
    rate: float     # of learning
    start: str = ""  # the task whose weights, of the same attention, it begins with, if that has run; else anew


TASKS = {  # at too high a rate pictures fall back to a guess: at 2e-3 of 32 pixels, at 1e-3 of 128 and 256
    "listops": Task("listops", 2048, 32, 10, 3, 1e-3),
    "path-32": Task("pathfinder", 32, 128, 12, 4, 1e-3),
    "path-64": Task("pathfinder", 64, 32, 8, 0, 5e-4, "path-32"),
    "path-x": Task("pathfinder", 128, 16, 20, 8, 3e-4),
    "path-256": Task("pathfinder", 256, 4, 25, 0, 3e-4, "path-x"),  # where dense has five steps a second
}
TINY = {"listops": Task("listops", 48, 2, 0, 0, 1e-3), "path-32": Task("pathfinder", 8, 2, 0, 0, 1e-3),
        "path-64": Task("pathfinder", 12, 2, 0, 0, 1e-3, "path-32")}
SMALL = {"width": 32, "heads": 2, "layers": 1}
BLOCK, EVERY = 128, 10
WARM, HELD = 30, 512  # steps to the full rate; examples to judge by, at most


class Training:
    def __init__(self, session, which, task, pool, seconds, start=None):
        torch = session.torch
        self.session, self.torch, self.task, self.pool, self.seconds = session, torch, task, pool, seconds
        import flashkiln
        sparsity = f"butterfly({BLOCK})" if which == "butterfly" else None
        torch.manual_seed(0)
        self.model = arena_model.network(task, lambda q, k, v: flashkiln.attention(q, k, v, sparsity=sparsity), start,
                                         **({} if session.cuda else SMALL)).to(session.device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), task.rate, weight_decay=0.01, fused=session.cuda)
        self.cooling = 1.0
        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda step: self.cooling * min(1.0, (step + 1) / WARM))

    def examples(self, pair):
        return [self.torch.from_numpy(x).to(self.session.device) for x in pair]

    def logits(self, tokens):
        with self.torch.autocast(self.session.device, self.torch.bfloat16, enabled=self.session.cuda):
            return self.model(tokens).float()

    def step(self, tokens, labels):
        self.optimizer.zero_grad()
        logits = self.logits(tokens)
        loss = self.torch.nn.functional.cross_entropy(logits, labels)
        loss.backward()
        self.torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.schedule.step()
        return self.torch.stack([loss.detach(), (logits.argmax(-1) == labels).float().mean()])

    def rows(self):
        """A row for every EVERY steps, means of these; seconds are those of training, not of drawing. In the second half of these
        the rate falls to nothing."""
        torch, task = self.torch, self.task
        every, most = (EVERY, 10 ** 9) if self.session.cuda else (2, 2)
        stream = arena_data.Stream(self.pool, task.kind, task.size, every * task.batch, 1)
        step, spent, begin = 0, 0.0, time.perf_counter()
        while step == 0 or step < most and spent < self.seconds and time.perf_counter() - begin < 2 * self.seconds + 10:
            batches = list(zip(*(x.split(task.batch) for x in self.examples(next(stream)))))
            if step == 0:  # kernels are compiled, and nothing is learnt
                self.logits(batches[0][0]).sum().backward()
            self.session.wait()
            started = time.perf_counter()
            loss, accuracy = torch.stack([self.step(*batch) for batch in batches]).mean(0).tolist()
            spent, step = spent + time.perf_counter() - started, step + len(batches)
            self.cooling = max(0.0, min(1.0, 2 - 2 * spent / max(self.seconds, 1e-9)))
            yield {"step": step, "seconds": f"{spent:.2f}", "loss": f"{loss:.4f}", "train_accuracy": f"{accuracy:.4f}"}
        stream.close()

    def accuracy(self):
        """Of examples from another seed."""
        count = min(HELD, max(128, 4 * self.task.batch)) if self.session.cuda else 2
        parts = self.pool.map(arena_data.draw_examples, *zip(*((self.task.kind, 10 ** 9 + i, self.task.batch, self.task.size)
                                                               for i in range(count // self.task.batch))))
        right = 0
        with self.torch.no_grad():
            for pair in parts:
                tokens, labels = self.examples(pair)
                right += (self.logits(tokens).argmax(-1) == labels).sum().item()
        return right / count


def run(session):
    tasks = TASKS if session.cuda else TINY
    context = multiprocessing.get_context("spawn")  # a fork would have this process's CUDA context
    with concurrent.futures.ProcessPoolExecutor(min(16, os.cpu_count() or 1), context) as pool:
        seconds = {name: session.args.seconds or (task.quick if session.args.quick else task.seconds) for name, task in tasks.items()}
        kept = os.path.join(session.args.out, "marks", "arena.pt")
        weights = session.torch.load(kept) if session.done else {}  # that trainings ended with, by task and attention
        for name in session.units([name for name in session.args.tasks or tasks if seconds[name] or not session.cuda]):
            for which in ("dense", "butterfly"):
                start = tasks[name].start if (tasks[name].start, which) in weights else ""
                weights[name, which] = train(session, name, which, tasks[name], pool, seconds[name], start, weights.get((start, which)))
            session.torch.save(weights, kept)


def train(session, name, which, task, pool, seconds, start, weights):
    """start: the task that `weights` are of, or "". Returns the weights that it ends with."""
    session.free()
    if session.cuda:
        session.torch.cuda.reset_peak_memory_stats()
    training = Training(session, which, task, pool, seconds, weights)
    rows = list(training.rows())
    peak = round(session.torch.cuda.max_memory_allocated() / 2**20) if session.cuda else 0
    held = training.accuracy()
    step_ms = 1e3 * float(rows[-1]["seconds"]) / rows[-1]["step"]
    first, last, how = trend(rows)
    common = {"task": name, "tokens": task.size if task.kind == "listops" else task.size ** 2, "attention": which,
              "start": start, "batch": task.batch, "step_ms": f"{step_ms:.2f}", "peak_mib": peak, "held_accuracy": f"{held:.4f}",
              "first_tenth": f"{first:.4f}", "last_tenth": f"{last:.4f}", "trend": how}
    session.write("arena", [{**common, **row} for row in rows])
    session.say(f"{name} {which}: {rows[-1]['step']} steps of {step_ms:.1f} ms, loss {first:.4f} to {last:.4f}, which {how}; {held:.3f} "
                f"of new examples, {peak} MiB")
    return training.model.state_dict()
