"""Tables in float64 and loops, written from the issue and the papers, not from the engine.

A bag is a list of (row, weight); a batch is a list of bags.
"""

from __future__ import annotations

import math

import numpy as np


def known_bags(ids, weights, n_rows):
    """Returns the bags that `ids` `[batch, length]`, or nested lists, mean.

    An id outside the vocabulary is row 0; a weight that is no number is 0; and an id of
    weight 0 is not in its bag.
    """
    bags = []
    for n, bag in enumerate(ids):
        entries = []
        for at, x in enumerate(bag):
            weight = 1.0 if weights is None else float(weights[n][at])
            if math.isfinite(weight) and weight != 0:
                entries.append((int(x) if 0 <= int(x) < n_rows else 0, weight))
        bags.append(entries)
    return bags


def factors(weights, combiner):
    """Returns what each entry of a bag is multiplied by."""
    total = {
        "sum": 1.0,
        "mean": math.fsum(weights),
        "sqrtn": math.sqrt(math.fsum(w * w for w in weights)),
    }[combiner]
    return [w / total if total else 0.0 for w in weights]


def combined(table, bag, combiner):
    """Returns the embedding `[dim]` of a bag; zeros for an empty one."""
    out = np.zeros(table.shape[1])
    if combiner == "max":
        return np.max([table[row] for row, _ in bag], axis=0) if bag else out
    for (row, _), factor in zip(bag, factors([w for _, w in bag], combiner), strict=True):
        out += factor * table[row]
    return out


def row_gradients(table, bag, combiner, grad):
    """Returns pairs of a row and its part of the gradient `grad` `[dim]` of the bag."""
    if combiner != "max":
        parts = factors([w for _, w in bag], combiner)
        return [(row, factor * grad) for (row, _), factor in zip(bag, parts, strict=True)]
    best = combined(table, bag, "max")
    is_best = [(row, table[row] == best) for row, _ in bag]
    n_best = sum((mask.astype(float) for _, mask in is_best), np.zeros(len(grad)))
    return [(row, mask * grad / np.maximum(n_best, 1)) for row, mask in is_best]


def weight_gradients(table, bag, combiner, grad):
    """Returns the derivative of <bag's embedding, grad> by each weight, in closed form."""
    weights = [w for _, w in bag]
    out = combined(table, bag, combiner)
    found = []
    for row, weight in bag:
        if combiner == "sum":
            found.append(table[row] @ grad)
        elif combiner == "mean":
            found.append((table[row] - out) @ grad / math.fsum(weights))
        else:
            root = math.sqrt(math.fsum(w * w for w in weights))
            found.append((table[row] / root - weight * out / root**2) @ grad)
    return found


class ReferenceTable:
    """One table, its slots and its optimizer."""

    def __init__(self, weights, optimizer, combiner="sum"):
        self.weights = np.asarray(weights, np.float64).copy()
        self.optimizer, self.combiner, self.steps = optimizer, combiner, 0
        start = getattr(optimizer, "initial_accumulator_value", 0.0)
        rows, dim = self.weights.shape
        shapes = {
            "sgd": [],
            "adagrad": [(dim, start)],
            "row_wise_adagrad": [(1, start)],
            "lazy_adam": [(dim, 0.0), (dim, 0.0)],
            "ftrl": [(dim, start), (dim, 0.0)],
        }[optimizer.kind]
        self.slots = [np.full((rows, width), value) for width, value in shapes]

    def bags(self, ids, weights=None):
        return known_bags(ids, weights, len(self.weights))

    def read(self, bags):
        return np.array([combined(self.weights, bag, self.combiner) for bag in bags])

    def gradients(self, uses):
        """Returns the gradient of each touched row, of pairs of bags and their gradients."""
        total = {}
        for bags, grads in uses:
            for bag, grad in zip(bags, grads, strict=True):
                for row, part in row_gradients(self.weights, bag, self.combiner, grad):
                    total[row] = total.get(row, 0.0) + part
        return total

    def train(self, uses, factor=1.0):
        """One step; `factor` is what global clipping multiplies every gradient by."""
        schedule = self.optimizer.learning_rate
        rate = float(schedule(self.steps)) if callable(schedule) else schedule
        self.steps += 1
        for row, grad in self.gradients(uses).items():
            self._step_row(row, factor * grad, rate)

    def _step_row(self, row, grad, rate):
        opt = self.optimizer
        if opt.clipnorm:
            grad = grad * min(1.0, opt.clipnorm / max(np.linalg.norm(grad), 1e-300))
        w = self.weights[row] * (1 - rate * opt.weight_decay)
        state = [slot[row] for slot in self.slots]
        w, state = getattr(self, "_" + opt.kind)(w, state, grad, rate)
        self.weights[row] = w
        for slot, value in zip(self.slots, state, strict=True):
            slot[row] = value

    def _sgd(self, w, state, grad, rate):
        return w - rate * grad, state

    def _adagrad(self, w, state, grad, rate):
        a = state[0] + grad**2
        return w - rate * grad / np.sqrt(a + self.optimizer.epsilon), [a]

    def _row_wise_adagrad(self, w, state, grad, rate):
        a = state[0] + np.mean(grad**2)
        return w - rate * grad / np.sqrt(a + self.optimizer.epsilon), [a]

    def _lazy_adam(self, w, state, grad, rate):
        opt, t = self.optimizer, self.steps
        m = opt.beta_1 * state[0] + (1 - opt.beta_1) * grad
        v = opt.beta_2 * state[1] + (1 - opt.beta_2) * grad**2
        alpha = rate * math.sqrt(1 - opt.beta_2**t) / (1 - opt.beta_1**t)
        return w - alpha * m / (np.sqrt(v) + opt.epsilon), [m, v]

    def _ftrl(self, w, state, grad, rate):
        """McMahan et al., KDD 2013, with z = `linear`, and Keras' extra terms."""
        opt, (n, z) = self.optimizer, state
        power, l1 = -opt.learning_rate_power, opt.l1_regularization_strength
        l2 = opt.l2_regularization_strength + opt.beta / (2 * rate)
        shrunk = grad + 2 * opt.l2_shrinkage_regularization_strength * w
        new = n + grad**2
        z = z + shrunk - (new**power - n**power) / rate * w
        shrunken = np.sign(z) * np.maximum(np.abs(z) - l1, 0.0)
        return -shrunken / (new**power / rate + 2 * l2), [new, z]
