"""The tables of a model folder in which users have rows."""

from recsys.forget.model_folder import user_tables


def test_a_dense_weight_with_as_many_rows_as_users_is_no_table():
    paths = ("embedding/users/embeddings", "embedding/hour/embeddings", "deep/hidden_0/kernel")
    summary = {
        "spec": {"user_rows": 208, "features": [{"name": "hour"}]},
        "variables": [{"path": f"m/{path}", "shape": [208, 16]} for path in paths],
    }
    assert user_tables(summary) == {"m/embedding/users"}
