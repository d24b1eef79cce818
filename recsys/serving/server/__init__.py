"""`recsys serve`: a model over HTTP, as TensorFlow Serving serves it, and a page for people.

service        the process: sockets, signals, the watcher of new versions
app            all routes together, the page, and the checks before them
predict        the routes of TensorFlow Serving
messages       bodies of predict requests and answers
tensors        values of JSON as arrays
api            the JSON API behind the page
answers        what it answers, by one version
micro_batcher  a bounded queue before a few threads; requests that wait are answered together
limits         how much a client may ask for; bodies are read within it
connections    slow headers, unread answers, too many connections
http_errors    errors with an HTTP status
served_models  what is served under which name, and the state of its versions
prometheus     what Prometheus reads
openapi        schemas of plain JSON for the OpenAPI page

`recsys.serving.retriever` answers, and `recsys.serving.pool` keeps the versions. Nothing
here imports TensorFlow.
"""
