"""TFX components: each resolves its artifacts and calls one function of `recsys`."""
