"""Recommendations and scores from a bundle: from Python, for a file of users, and served.

served_model      `Retriever` and `Scorer`: one way to answer, for all of them
label_scorer      `LabelScorer`: predicts the labels of given items
pair              `Pair`: a retriever whose candidates a ranker orders
opening           opens a bundle of any kind
catalogue_search  users and items by name; filters by features
recommendations   `load_bundle`: answers in Python, with tables for notebooks
ranking           answers of `rank` in Python
batch_file        a file of users in, of any format; a file of recommendations out
rank_file         a file of users with items in; a file of rankings out

`recsys serve`, a model over HTTP and gRPC as TensorFlow Serving serves it, and a page:

service           the process: sockets, signals, the watcher of new versions
app               all routes together, the page, and the checks before them
tf_serving        the REST API of TensorFlow Serving
rank_api          recommendations and rankings of given items, over REST and gRPC
served_log        the log of what was served
grpc_server       the gRPC services
page_api          the JSON API behind the page
pool              the versions that are loaded, their state, and metrics
predictor         requests to signatures, and the threads that answer
requests          limits, errors and values of requests

Only requests of gRPC import TensorFlow in the server itself.
"""
