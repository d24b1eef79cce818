"""The metrics of an evaluation: one registered class each.

    accuracy recall, precision, hit_rate, ndcg, map, mrr, auc beyond_accuracy novelty, diversity,
    popularity_lift, coverage, gini metric base classes: `Metric`, `CatalogueMetric`, `RankedLists`

Register your own with `recsys.register_metric`, see `examples/custom_metric.py`.
"""
