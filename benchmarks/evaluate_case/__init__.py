"""What `benchmarks.evaluate` measures: every metric of many users over a whole catalogue.

Users and items are random vectors, and so are a user's positives and what the user has
seen: a positive stands anywhere in the list, which costs exact ranks the most. `case` says
what is measured and draws it; `ours` and `blocked_jax` evaluate it, and `children` starts
processes of their own: peers, and ours on several devices.
"""
