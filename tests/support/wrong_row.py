"""Takes a user out of a bundle, and with them by mistake the row of another: it is refused."""

import sys
from pathlib import Path

import numpy as np

from recsys.bundles.bundle import verify
from recsys.data.vocabulary import Vocabulary
from recsys.errors import RecsysError
from recsys.forget import served
from recsys.forget.files import Names, replacing
from recsys.forget.model_folder import free_rows


def main(bundle):
    users = Vocabulary.load(bundle / "vocabulary" / "users.parquet")
    of_another = users.rows(["u6"])
    assert users.row_counts[of_another] > 0

    def free_two_rows(folder, names):
        return np.concatenate([free_rows(folder, names), of_another])

    served.free_rows = free_two_rows
    try:
        with replacing(bundle) as copy:
            served.take_out(copy, Names(["u5"]), bundle)
    except RecsysError as error:
        assert error.code == "R530"  # noqa: PT017 there is no pytest here
        verify(bundle)
        return
    raise AssertionError("the row of another was overwritten")


main(Path(sys.argv[1]) / "bundle")
