"""`recsys serve`: a model over HTTP, as TensorFlow Serving serves it, and a page for people.

service        the process: sockets, signals, the watcher of new versions
app            all routes together, the page, and the checks before them
predict        the API of TensorFlow Serving: routes, and bodies of requests and answers
page_api       the JSON API behind the page
pool           the versions that are loaded, and their state
micro_batcher  a bounded queue before a few threads; requests that wait are answered together
limits         how much a client may ask for; bodies are read within it
connections    slow headers, unread answers, too many connections
http_errors    errors with an HTTP status
prometheus     what Prometheus reads

`recsys.serving.retriever` answers. Nothing here imports TensorFlow.
"""
