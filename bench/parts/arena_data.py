"""Tasks in the manner of Long Range Arena, made here: ListOps, and Pathfinder pictures of any size. NumPy alone."""
import collections
import math

import numpy

# ---- ListOps: nested lists of digits under MIN, MAX, MED and SM (the sum's last digit) ----------------------------------

DIGITS, OPERATORS, CLOSE, PAD = 10, ("MIN", "MAX", "MED", "SM"), 14, 15
VOCABULARY = 16
APPLY = (min, max, lambda x: int(numpy.median(x)), lambda x: sum(x) % 10)


def expression(random, depth, room):
    """(tokens, value) of at most `room` tokens."""
    if depth == 0 or room < 8 or random.random() < 0.25:
        digit = int(random.integers(10))
        return [digit], digit
    tokens, values, wanted = [], [], int(random.integers(2, 11))
    while len(values) < wanted and len(tokens) < room - 2:
        more, value = expression(random, depth - 1, room - 2 - len(tokens))
        tokens += more
        values.append(value)
    operator = int(random.integers(4))
    return [DIGITS + operator, *tokens, CLOSE], APPLY[operator](values)


def listops(seed, count, seqlen, least=0.25, depth=10):
    """(tokens [count, seqlen] uint8, labels [count]): a list of five to ten, of a quarter of seqlen at least."""
    random = numpy.random.default_rng(seed)
    out, labels = numpy.full((count, seqlen), PAD, numpy.uint8), numpy.zeros(count, numpy.int64)
    for i in range(count):
        tokens = []
        while len(tokens) < least * seqlen:
            wanted, operator = int(random.integers(5, 11)), int(random.integers(4))
            parts = [expression(random, depth, (seqlen - 2) // wanted) for _ in range(wanted)]
            tokens = [DIGITS + operator, *(x for part, _ in parts for x in part), CLOSE]
        out[i, :len(tokens)], labels[i] = tokens, APPLY[operator]([value for _, value in parts])
    return out, labels


# ---- Pathfinder: are the two discs on one dashed path? ------------------------------------------------------------------

def path(random, size, dashes, step):
    """Corners of a smooth walk that stays in the picture, [dashes + 1, 2]; None where it would not."""
    point, heading = random.uniform(0.1 * size, 0.9 * size, 2), random.uniform(0, 2 * math.pi)
    corners = [point]
    for turn in random.normal(0, 0.35, dashes):
        heading += turn
        point = point + step * numpy.array([math.cos(heading), math.sin(heading)])
        if not (1 < point.min() and point.max() < size - 2):
            return None
        corners.append(point)
    return numpy.array(corners)


def some_path(random, size, dashes, step):
    while True:
        found = path(random, size, dashes, step)
        if found is not None:
            return found


def draw(picture, corners, share=0.6):
    """The first part of each stretch, as a dash."""
    length = numpy.linalg.norm(corners[1] - corners[0])
    t = numpy.linspace(0, share, max(2, int(2 * length)))[:, None]
    for a, b in zip(corners[:-1], corners[1:]):
        x, y = (a + (b - a) * t).round().astype(int).T
        picture[y, x] = 255


def disc(picture, centre, radius):
    y, x = numpy.ogrid[:picture.shape[0], :picture.shape[1]]
    picture[(x - centre[0]) ** 2 + (y - centre[1]) ** 2 <= radius ** 2] = 255


def pathfinder(seed, count, size):
    """(pixels [count, size * size] uint8, labels [count]): two long paths, shorter ones that distract, two discs: at the ends
    of one path (1), or each at an end of another (0). Pictures 2 i and 2 i + 1 are of one drawing, of which they take one label
    each, so that what tells them apart is the place of one disc."""
    random = numpy.random.default_rng(seed)
    out, labels = numpy.zeros((count, size, size), numpy.uint8), numpy.arange(count) % 2
    dashes = 4 if size < 64 else 9 if size < 200 else 14
    step = 0.4 * size / dashes
    for i in range(0, count, 2):
        first, second = (some_path(random, size, dashes, step) for _ in range(2))
        for corners in (first, second):
            draw(out[i], corners)
        for _ in range(max(2, size // 16)):
            draw(out[i], some_path(random, size, dashes // 3, step))
        out[i + 1:i + 2] = out[i]
        for picture, last in zip(out[i:i + 2], (second, first)):
            for end in (first[0], last[-1]):
                disc(picture, end.round(), max(2.5, size / 32))
    return out.reshape(count, -1), labels.astype(numpy.int64)


def draw_examples(name, seed, count, size):
    """What a pool's process does."""
    return {"listops": listops, "pathfinder": pathfinder}[name](seed, count, size)


class Stream:
    """Examples that are never seen twice, drawn by a pool's processes ahead of time; the same ones for the same seed."""

    def __init__(self, pool, name, size, count, seed, ahead=24):
        self.pool, self.what, self.seed, self.waiting = pool, (name, size, count), seed * 1_000_003, collections.deque()
        while len(self.waiting) < ahead:
            self.submit()

    def submit(self):
        name, size, count = self.what
        self.seed += 1
        self.waiting.append(self.pool.submit(draw_examples, name, self.seed, count, size))

    def __next__(self):
        """(tokens, labels) of `count` examples."""
        self.submit()
        return self.waiting.popleft().result()

    def close(self):
        for future in self.waiting:
            future.cancel()
