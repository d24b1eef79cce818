"""`recsys check`, run in the current folder."""

import json

import numpy as np
from commands import run_main

OUT = ("--out", "out.yaml", "--force")


def found(capsys, *arguments, out=OUT):
    """Returns what the command says as JSON; it writes `out.yaml`."""
    code = run_main("check", *arguments, *out, "--json")
    out = capsys.readouterr()
    assert out.out, out.err
    result = json.loads(out.out)
    assert (code == 0) == (result["config"] is not None)
    return result


def columns(result):
    """Returns the column of each role."""
    return {role: found["column"] for role, found in result["roles"].items()}


def grouped(n_users=40, n_each=9):
    """Returns users and items: the rows of a user together, items in no order, as SASRec's."""
    items = np.random.default_rng(0).integers(0, 200, (n_users, n_each))
    return [(f"u{user}", f"i{item}") for user, row in enumerate(items) for item in row]
