"""The layers of rankers equal NumPy in float64, on JAX and on TensorFlow."""

import json

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest
from interaction_layers import LAYERS, built, made, normal, outputs
from on_tensorflow import run_on_tensorflow
from places import SUPPORT

from recsys.models import sequences
from recsys.models.interactions import BilinearFusion, DotInteraction
from recsys.models.layers import Linear


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def softmax(x):
    powers = np.exp(x - x.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def relu(x):
    return np.maximum(x, 0)


class Weights:
    """The weights of a layer in float64, by the end of their paths."""

    def __init__(self, layer):
        self.values = {
            v.path.split("layer/", 1)[1]: np.asarray(v.value, np.float64) for v in layer.weights
        }

    def __getitem__(self, path):
        return self.values[path]

    def linear(self, path, x, copy=()):
        bias = self.values.get(f"{path}/bias")
        out = x @ self[f"{path}/kernel"][copy]
        return out if bias is None else out + bias[copy].reshape(-1)

    def mlp(self, path, x, copy=(), layers=1):
        for i in range(layers):
            x = relu(self.linear(f"{path}/hidden_{i}", x, copy))
        return x

    def norm(self, path, x):
        off = x - x.mean()
        return off / np.sqrt((off**2).mean() + 1e-6) * self[f"{path}/gamma"] + self[f"{path}/beta"]


def computed(layer, inputs):
    """Returns the outputs of one compiled program."""
    return outputs(jax.jit(layer), inputs)


# --- references: one example at a time


def dot(w, x):
    return [x[i] @ x[j] for i in range(len(x)) for j in range(i)]


def cross(w, x):
    last = x
    for i in range(2):
        last = x * w.linear(f"cross_{i}", last) + last
    return last


def cross_of_a_rank(w, x):
    last = x
    for i in range(3):
        last = x * w.linear(f"cross_{i}", w.linear(f"narrow_{i}", last)) + last
    return last


def gate(w, x):
    return 2 * sigmoid(w["logit"]) * x


def gate_of_a_context(w, x, context):
    return 2 * sigmoid(w.linear("gate", w.mlp("hidden", context))) * x


def fusion(w, first, second):
    logits = w.linear("linear", np.concatenate([first, second]))
    for head in range(2):
        p, q = first[4 * head :][:4], second[3 * head :][:3]
        # The columns of a head's matrix are the logits' matrices, side by side.
        logits = logits + [p @ w["pair/kernel"][head][:, 3 * u :][:, :3] @ q for u in range(3)]
    return logits


def target(w, candidate, history, mask):
    out = np.zeros(len(candidate))
    for h in history[mask]:
        x = w.linear("first", np.concatenate([h, candidate, h - candidate, h * candidate]))
        x = w.linear("hidden/hidden_0", x * sigmoid(x))
        out += w.linear("score", x * sigmoid(x)) * h
    return out


def target_softmax(w, candidates, history, mask):
    out = np.zeros(candidates.shape)
    for i, c in enumerate(candidates if mask.any() else []):
        x = [np.concatenate([h, c, h - c, h * c]) for h in history[mask]]
        scores = w.linear("score", sigmoid(w.linear("first", np.stack(x))))[:, 0]
        out[i] = softmax(scores) @ history[mask]
    return out


def candidates(w, history, candidates, mask):
    def state(x, seen):
        """The new state of `x`, given the entries to which it attends."""
        normed, seen = w.norm("norm", x), [w.norm("norm", entry) for entry in seen]
        q = w.linear("query", normed)
        k, v = (np.stack([w.linear(part, e) for e in seen]) for part in ("key", "value"))
        heads = [slice(0, 4), slice(4, 8)]
        found = [softmax(k[:, of] @ q[of] / 2) @ v[:, of] for of in heads]
        x = x + w.linear("out", np.concatenate(found))
        return x + w.linear("narrow", relu(w.linear("widen", w.norm("feed_norm", x))))

    of_history = np.zeros(history.shape)
    for i in np.flatnonzero(mask):
        of_history[i] = state(history[i], history[i:][mask[i:]])
    return of_history, [state(c, [*history[mask], c]) for c in candidates]


def towers(w, states):
    return [w.linear("logit", w.mlp("hidden", x, k), k)[0] for k, x in enumerate(states)]


def shared_bottom(w, x):
    return [w.linear("logit", x, k)[0] for k in range(3)]


def mmoe(w, x):
    experts = np.stack([w.mlp("experts", x, e, layers=2) for e in range(3)])
    return [softmax(w.linear("gate", x, k)) @ experts for k in range(2)]


def ple(w, x):
    states, shared = [x, x], x
    for n in range(3):
        own = [w.mlp(f"level_{n}/own", states[k], (k, 0), layers=2) for k in range(2)]
        common = [w.mlp(f"level_{n}/shared", shared, e, layers=2) for e in range(3)]
        gates = [softmax(w.linear(f"level_{n}/gate", states[k], k)) for k in range(2)]
        states = [gates[k] @ np.stack([own[k], *common]) for k in range(2)]
        if n < 2:
            gate = softmax(w.linear(f"level_{n}/shared_gate", shared))
            shared = gate @ np.stack([*own, *common])
    return states


REFERENCES = {
    "dot": dot,
    "cross": cross,
    "cross of a rank": cross_of_a_rank,
    "gate": gate,
    "gate of a context": gate_of_a_context,
    "fusion": fusion,
    "target": target,
    "target, softmax": target_softmax,
    "candidates": candidates,
    "towers": towers,
    "shared bottom": shared_bottom,
    "mmoe": mmoe,
    "ple": ple,
}


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_computes_the_papers_equations(name):
    layer, inputs = built(name)
    found = computed(layer, inputs)
    if name == "candidates":
        found[0] = found[0] * np.asarray(inputs[2])[..., None]  # States of padding mean nothing.
    w = Weights(layer)
    wide = [np.asarray(x, bool if x.dtype == bool else np.float64) for x in inputs]
    rows = [REFERENCES[name](w, *row) for row in zip(*wide, strict=True)]
    expected = zip(*rows, strict=True) if len(found) > 1 else [rows]
    for got, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(got, np.array(wanted), rtol=1e-4, atol=1e-5)


def test_tensorflow_gives_the_same_outputs(tmp_path):
    run_on_tensorflow(SUPPORT / "interaction_layers.py", tmp_path)
    found = np.load(tmp_path / "outputs.npz")
    for name in LAYERS:
        layer, inputs = built(name)
        for number, expected in enumerate(computed(layer, inputs)):
            got = found[f"{name}/{number}"]
            np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_made_of_its_config_starts_with_equal_weights(name):
    layer, inputs = made(name)
    config = json.dumps(keras.saving.serialize_keras_object(layer))
    again = keras.saving.deserialize_keras_object(json.loads(config))
    for got, expected in zip(computed(again, inputs), computed(layer, inputs), strict=True):
        np.testing.assert_array_equal(got, expected)
    assert [v.path for v in again.weights] == [v.path for v in layer.weights]


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_computes_in_the_dtype_of_its_inputs(name):
    layer, inputs = built(name)
    half = [x if x.dtype == bool else x.astype(jnp.bfloat16) for x in inputs]
    for got, expected in zip(computed(layer, half), computed(layer, inputs), strict=True):
        is_logits = name in ("towers", "shared bottom")
        assert got.dtype == (np.float32 if is_logits else jnp.bfloat16)
        error = np.abs(got.astype(np.float32) - expected).max()
        assert 0 < error < 0.03 * np.abs(expected).max()
    assert {v.dtype for v in layer.weights} <= {"float32"}


def test_the_gradient_of_dot_products_is_that_of_plain_jax():
    x, upstream = jnp.asarray(normal(7, 8)), normal(21)
    rows, columns = np.tril_indices(7, -1)

    def plain(x):
        return jnp.sum(jnp.einsum("bid,bjd->bij", x, x)[:, rows, columns] * upstream)

    found = jax.jit(jax.grad(lambda x: jnp.sum(DotInteraction()(x) * upstream)))(x)
    np.testing.assert_allclose(found, jax.jit(jax.grad(plain))(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["target", "target, softmax", "candidates"])
def test_padding_has_no_influence_and_no_gradient(name):
    layer, (*vectors, mask) = built(name)
    place = 0 if name == "candidates" else 1  # Of the history among the inputs.

    @jax.jit
    def read(history):
        given = [*vectors[:place], history, *vectors[place + 1 :]]
        found = layer(*given, mask)
        return found[1] if name == "candidates" else found

    history = vectors[place]
    other = jnp.where(mask[..., None], history, 7.0)
    np.testing.assert_array_equal(read(other), read(history))
    of_squares = jax.jit(jax.grad(lambda history: jnp.sum(jnp.square(read(history)))))
    gradient = np.asarray(of_squares(history))
    assert np.isfinite(gradient).all()
    assert not gradient[~mask].any()
    assert np.abs(gradient[mask]).max(-1).all()


def test_the_state_of_a_candidate_does_not_depend_on_the_others():
    layer, (history, candidates, mask) = built("candidates")
    read = jax.jit(layer)
    old_history, states = read(history, candidates, mask)
    others = candidates.at[:, 1:].set(5.0 * normal(3, 8))
    new_history, found = read(history, others, mask)
    np.testing.assert_array_equal(found[:, 0], states[:, 0])
    assert np.abs(np.asarray(found - states)[:, 1:]).max(-1).all()
    np.testing.assert_array_equal(new_history, old_history)
    alone = read(history, candidates[:, :1], mask)[1]
    np.testing.assert_allclose(alone[:, 0], states[:, 0], rtol=1e-5, atol=1e-6)


def test_a_long_history_of_candidates_attends_in_blocks_to_the_same(monkeypatch):
    layer, inputs = built("candidates")
    whole = computed(layer, inputs)
    monkeypatch.setattr(sequences, "_BLOCK", 2)
    for got, expected in zip(outputs(jax.jit(lambda *x: layer(*x)), inputs), whole, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


def test_copies_of_a_linear_map_start_as_different_glorot_maps():
    layer = Linear(30, copies=(2, 3))
    layer.build((None, 50))
    kernels = np.asarray(layer.kernel).reshape(6, -1)
    limits = np.abs(kernels).max(-1)
    np.testing.assert_allclose(limits, np.sqrt(6 / 80), rtol=0.02)
    assert (limits <= np.sqrt(6 / 80)).all()
    assert np.abs(np.corrcoef(kernels) - np.eye(6)).max() < 0.1


def test_heads_that_do_not_divide_a_stream_are_refused():
    with pytest.raises(ValueError, match=r"heads must divide.*heads=3, widths=\(8, 6\)"):
        BilinearFusion(heads=3)(jnp.zeros((2, 8)), jnp.zeros((2, 6)))
