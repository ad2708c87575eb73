"""Tasks in the manner of Long Range Arena (arena_data.py): a small transformer with dense and with butterfly block-sparse
attention, each for the same time: loss and accuracy against steps and seconds. ListOps of 2,048 tokens, Pathfinder pictures
of 32 to 256 pixels a side (Path-X: 16,384 tokens; Path-256: 65,536). The long ones have so few pictures that a model can
learn them by heart: they show that training goes on, what a step takes, and that the loss falls, not what can be learnt.
Results: arena.csv
"""
import concurrent.futures
import math
import multiprocessing
import os
import time

from parts import arena_data

# examples, of which one in eight is for validation; size; batch; seconds, and in a quick run
TASKS = {
    "listops": ("listops", 16384, 2048, 32, 60, 5),
    "path-32": ("pathfinder", 65536, 32, 128, 60, 5),
    "path-64": ("pathfinder", 16384, 64, 32, 40, 0),
    "path-x": ("pathfinder", 144, 128, 16, 30, 6),
    "path-256": ("pathfinder", 36, 256, 4, 30, 8),
}
TINY = {"listops": ("listops", 16, 48, 2, 0, 0), "path-32": ("pathfinder", 16, 8, 2, 0, 0)}
SMALL = {"width": 32, "heads": 2, "layers": 1}
BLOCK, EVERY = 128, 10
RATE = 5e-4
GROUPS = 16  # of neighbouring tokens, whose means a decision is made from


def network(torch, attention, tokens, vocabulary, classes, width=128, heads=2, layers=3):
    nn = torch.nn

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

        def forward(self, x):  # [batch, tokens, width]
            q, k, v = self.qkv(self.norm_1(x)).unflatten(-1, (3, heads, -1)).unbind(2)
            x = x + self.out(attention(q, k, v).flatten(2))
            return x + self.mlp(self.norm_2(x))

    class Classifier(nn.Module):
        def __init__(self):
            super().__init__()
            self.token, self.place = nn.Embedding(vocabulary, width), nn.Embedding(tokens, width)
            self.blocks = nn.Sequential(*(Block() for _ in range(layers)))
            self.groups = math.gcd(GROUPS, tokens)
            self.norm, self.head = nn.LayerNorm(self.groups * width), nn.Linear(self.groups * width, classes)
            nn.init.normal_(self.place.weight, std=0.1)
            nn.init.zeros_(self.head.weight)  # the first loss is that of a guess

        def forward(self, x):
            x = self.blocks(self.token(x) + self.place.weight)
            return self.head(self.norm(x.unflatten(1, (self.groups, -1)).mean(2).flatten(1)))
    return Classifier()


class Training:
    def __init__(self, session, name, task, data, seconds):
        torch = session.torch
        self.session, self.torch, self.seconds, (_, _, _, self.batch, _, _) = session, torch, seconds, task
        import flashkiln
        sparsity = f"butterfly({BLOCK})" if name == "butterfly" else None
        torch.manual_seed(0)
        pixels, labels = data
        held = len(labels) // 8
        self.train = [torch.from_numpy(x[held:]).to(session.device) for x in (pixels, labels)]
        self.held = [torch.from_numpy(x[:held]).to(session.device) for x in (pixels, labels)]
        classes, vocabulary = (10, arena_data.VOCABULARY) if task[0] == "listops" else (2, 256)
        self.model = network(torch, lambda q, k, v: flashkiln.attention(q, k, v, sparsity=sparsity), pixels.shape[1],
                             vocabulary, classes, **({} if session.cuda else SMALL)).to(session.device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), RATE, weight_decay=0.01, fused=session.cuda)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda step: min(1.0, (step + 1) / 30))

    def logits(self, tokens):
        with self.torch.autocast(self.session.device, self.torch.bfloat16, enabled=self.session.cuda):
            return self.model(tokens.int())

    def step(self, chosen):
        self.optimizer.zero_grad()
        logits, labels = self.logits(self.train[0][chosen]).float(), self.train[1][chosen]
        loss = self.torch.nn.functional.cross_entropy(logits, labels)
        loss.backward()
        self.torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.schedule.step()
        return self.torch.stack([loss.detach(), (logits.argmax(-1) == labels).float().mean()])

    def accuracy(self, most=512):
        """Of what was held back."""
        with self.torch.no_grad():
            right = [(self.logits(x).argmax(-1) == y).float().sum() for x, y in
                     zip(*(part[:most].split(self.batch) for part in self.held))]
        return float(sum(right)) / min(most, len(self.held[1]))

    def rows(self):
        """A row for every EVERY steps: means of these; seconds are those of training alone."""
        torch, random = self.torch, self.torch.Generator().manual_seed(0)
        step, spent, most = 0, 0.0, 10 ** 9 if self.session.cuda else 2
        self.step(torch.arange(self.batch, device=self.session.device))  # compiles
        self.session.wait()
        while spent < self.seconds and step < most or step == 0:
            begin, found = time.perf_counter(), []
            for _ in range(EVERY if self.session.cuda else 2):
                chosen = torch.randint(len(self.train[1]), (self.batch,), generator=random).to(self.session.device)
                found.append(self.step(chosen))
                step += 1
            loss, accuracy = torch.stack(found).mean(0).tolist()
            spent += time.perf_counter() - begin
            yield {"step": step, "seconds": f"{spent:.2f}", "loss": f"{loss:.4f}", "train_accuracy": f"{accuracy:.4f}"}


def run(session):
    tasks = TASKS if session.cuda else TINY
    wanted = [name for name in session.args.tasks or tasks if name in tasks]
    context = multiprocessing.get_context("spawn")  # a fork would have this process's CUDA context
    with concurrent.futures.ProcessPoolExecutor(min(16, os.cpu_count() or 1), context) as pool:
        for name in wanted:
            kind, count, size, _, seconds, quick = task = tasks[name]
            seconds = session.args.seconds or (quick if session.args.quick else seconds)
            if session.cuda and not seconds:
                continue
            if session.args.quick:
                count = min(count, 8192)
            begin = time.perf_counter()
            data = arena_data.make(pool, kind, count, size, 1)
            session.say(f"{name}: {count} examples of {data[0].shape[1]} tokens in {time.perf_counter() - begin:.1f} s")
            for which in ("dense", "butterfly"):
                train_one(session, name, which, task, data, seconds)


def train_one(session, name, which, task, data, seconds):
    session.free()
    if session.cuda:
        session.torch.cuda.reset_peak_memory_stats()
    training = Training(session, which, task, data, seconds)
    rows = list(training.rows())
    peak = round(session.torch.cuda.max_memory_allocated() / 2**20) if session.cuda else 0
    held = training.accuracy()
    step_ms = 1e3 * float(rows[-1]["seconds"]) / rows[-1]["step"]
    common = {"task": name, "tokens": data[0].shape[1], "attention": which, "batch": task[3], "examples": len(data[1]),
              "step_ms": f"{step_ms:.2f}", "peak_mib": peak, "held_accuracy": f"{held:.4f}"}
    session.write("arena", [{**common, **row} for row in rows])
    session.say(f"  {which}: {rows[-1]['step']} steps of {step_ms:.1f} ms, loss {rows[0]['loss']} to {rows[-1]['loss']}, "
                f"accuracy {rows[-1]['train_accuracy']} in training, {held:.3f} held back, {peak} MiB")
