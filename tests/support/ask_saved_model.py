"""Asks a SavedModel with stock TensorFlow: prints what `recommend` answers, as JSON.

`python ask_saved_model.py VERSION_FOLDER < questions.json`; imports only TensorFlow.
"""

import json
import sys

import tensorflow as tf


def main(folder):
    asked = json.load(sys.stdin)
    model = tf.saved_model.load(folder)
    recommend = model.signatures["recommend"]
    inputs = {name: tf.constant(values) for name, values in asked.items()}
    # Features of the user, which no question says anything of.
    for name in recommend.structured_input_signature[1].keys() - inputs.keys():
        inputs[name] = tf.fill([len(asked["user_id"]), 1], "")
    answer = recommend(**inputs)
    found = {
        "candidate_ids": [[id_.decode() for id_ in row] for row in answer["candidate_ids"].numpy()],
        "scores": answer["scores"].numpy().tolist(),
        "known": answer["known"].numpy().tolist(),
        "source": [source.decode() for source in answer["source"].numpy()],
    }
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1])
