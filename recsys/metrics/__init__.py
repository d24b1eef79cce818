"""The metrics of an evaluation: one registered class each.

    rankings    recall, precision, hit_rate, ndcg, map, mrr, auc; novelty, diversity,
                popularity_lift, coverage, gini
    metric      base classes: `Metric`, `CatalogueMetric`, `PooledMetric`, `RankedLists`

Register your own with `recsys.register_metric`, see `examples/custom_metric.py`.
"""
